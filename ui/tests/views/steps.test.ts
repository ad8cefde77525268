import { expect, test } from "vitest";

import type { Answer } from "../../src/source/source";
import { calculation, reach } from "../../src/views/steps/calculation";

function answer(over: Record<string, unknown> = {}): Answer {
  const table = (shape: number[], values: number[]) => ({
    shape,
    type: "float32" as const,
    values: Float32Array.from(values),
  });
  return {
    fields: {
      query: 1, keys: [0, 1, 2], visible_keys: 2, own_key: 1, width: 4, scale: 0.5,
      softcap: null, product: [2, 4, 6], scaled: [1, 2, 3], capped: null, bias: null,
      visible: [true, true, false], score: [1, 2, null], exponential: [0.3679, 1, 0],
      total: 1.3679, maximum: 2, sink: null, sink_weight: 0, weight: [0.2689, 0.7311, 0],
      rank: [2, 1, null], shown_weight: 1, has_values: true, values_note: "", ...over,
    },
    arrays: {
      q: table([4], [1, 1, 0, -3]),
      k: table([3, 4], [2, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0]),
      v: table([3, 2], [1, 0, 0, 1, 5, 5]),
      output: table([2], [0.2689, 0.7311]),
      partial: table([2], [0.2689, 0.7311]),
    },
  }; // prettier-ignore
}

test("a hidden key has the score −∞ and the weight 0", () => {
  const found = calculation(answer());
  expect(found.rows[2]?.score).toBe(-Infinity);
  expect(found.rows[2]?.weight).toBe(0);
  expect(found.otherKeys).toBe(0);
  expect(found.usualScale).toBe(true);
  expect(found.steps).toEqual(["project", "product", "scale", "mask", "softmax", "mix"]);
  expect([...(found.rows[1]?.v ?? [])]).toEqual([0, 1]);
});

test("steps that this model has, and only those", () => {
  const found = calculation(
    answer({ capped: [0.9, 1.5, 2], softcap: 3, bias: [0, -1, 0], has_values: false, scale: 1 }),
  );
  expect(found.steps).toEqual(["project", "product", "scale", "softcap", "bias", "mask", "softmax"]);
  expect(found.usualScale).toBe(false);
  expect(found.output).toBeNull();
});

test("what is not shown is said: other keys and a learned sink make 100 %", () => {
  const found = calculation(answer({ visible_keys: 9, shown_weight: 0.7, sink: 1, sink_weight: 0.1 }));
  expect(found.otherKeys).toBe(7);
  expect(found.otherWeight).toBeCloseTo(0.2);
  expect(found.sinkWeight).toBeCloseTo(0.1);
});

test("strips share the largest absolute value", () => {
  expect(reach([Float32Array.from([1, -3]), null, Float32Array.from([2])])).toBe(3);
});
