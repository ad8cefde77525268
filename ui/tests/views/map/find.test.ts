import { describe, expect, it } from "vitest";

import { Labels } from "../../../src/state/labels";
import { find } from "../../../src/views/map/find";

function labels(all: readonly string[]): Labels {
  return new Labels(
    {
      ask: async (_, parameters = {}) => {
        const start = Number(parameters.start);
        const part = all.slice(start, start + Number(parameters.count));
        return { fields: { start, tokens: all.length, labels: part }, arrays: {} };
      },
    },
    0,
    0,
    0,
  );
}

describe("a text is found", () => {
  const words = ["The", "␣bank", "⏎", "of", "␣the", "␣Ban", "king", "␣house"];

  it.each([
    ["bank", [1, 5]],
    [" bank", [1, 5]],
    ["banking", [5]],
    ["the", [0, 4]],
    ["\nof", [2]],
    ["nothing", []],
  ])("%j", async (wanted, tokens) => {
    expect(await find(labels(words), words.length, wanted)).toEqual(tokens);
  });

  it("over the border of two chunks, once", async () => {
    const long = Array.from({ length: 20_000 }, (_, at) => `w${at}.`);
    long[8191] = "ri";
    long[8192] = "ver";
    expect(await find(labels(long), long.length, "river")).toEqual([8191]);
    expect(await find(labels(long), long.length, "w16384.")).toEqual([16_384]);
    expect(await find(labels(long), long.length, "ri")).toEqual([8191]);
  });
});
