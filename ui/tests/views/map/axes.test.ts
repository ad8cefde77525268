import { expect, it } from "vitest";

import { labelStep, niceStep } from "../../../src/views/map/axes";

it("labels every token, every other, or none", () => {
  expect([20, 9, 8.9, 4.5, 4.4, 0.01].map(labelStep)).toEqual([1, 1, 2, 2, 0, 0]);
});

it("counts in round numbers", () => {
  expect([44, 4, 1, 0.1].map((scale) => niceStep(scale, 44))).toEqual([1, 20, 50, 500]);
});
