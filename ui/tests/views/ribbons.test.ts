import { describe, expect, test } from "vitest";

import { above, byWords, fitted, leadingTo, lowestTelling, placed, ribbons, spread } from "../../src/views/flow/ribbons";
import { readingFrom } from "./texts";

// Two layers over four tokens: a | b b | c. From c (token 3) down.
const reading = readingFrom([["", "a"], [" ", "b", 2], [" ", "c"]]);
const layers = Float32Array.from([
  0.3, 0.2, 0.25, 0.25, // the input
  0.1, 0.2, 0.2, 0.5, // between the layers
  0, 0, 0, 1, // the chosen word
]); // prettier-ignore
const edges = Int32Array.from([
  0, 0, 0,
  0, 1, 1,
  0, 2, 2,
  0, 3, 3,
  0, 3, 0,
  0, 3, 2,
  1, 3, 3,
  1, 3, 2,
  1, 3, 1,
  1, 3, 0,
]); // prettier-ignore
const amounts = Float32Array.from([0.1, 0.2, 0.2, 0.25, 0.2, 0.05, 0.5, 0.2, 0.2, 0.1]);

describe("the flow by words", () => {
  const flow = byWords(reading, layers, 4, edges, amounts);

  test("tokens are added up to words", () => {
    expect(flow.layers).toBe(2);
    expect([...(flow.rows[0] ?? [])].map((one) => one.toFixed(2))).toEqual(["0.30", "0.45", "0.25"]);
    const two = flow.edges.find((edge) => edge.layer === 1 && edge.from === 2 && edge.to === 1);
    expect(two?.amount).toBeCloseTo(0.4);
  });

  test("ribbons of a word lie side by side, as thick as what they carry", () => {
    const found = ribbons(flow, (word) => 100 * word, 10).filter((one) => one.layer === 1);
    const sorted = found.sort((a, b) => a.to - b.to);
    expect(sorted.map((one) => one.thickness.toFixed(2))).toEqual(["1.00", "4.00", "5.00"]);
    // Together they are 10 thick around the middle of word 2, one below the other.
    expect(sorted.map((one) => one.y1.toFixed(2))).toEqual(["195.50", "198.00", "202.50"]);
  });

  test("the parts that lead to the input words add up to what leaves the chosen word", () => {
    const parts = [0, 1, 2].map((word) => leadingTo(flow, word));
    flow.edges.forEach((_, at) => {
      const sum = parts.reduce((total, part) => total + (part[at] ?? 0), 0);
      expect(sum).toBeCloseTo(1);
    });
    // Through the upper layer: what ends in the input word is that word's share.
    const total = [0, 1, 2].map((word) =>
      flow.edges.reduce(
        (sum, edge, at) =>
          edge.layer === 1 ? sum + edge.amount * (parts[word]?.[at] ?? 0) : sum,
        0,
      ),
    );
    total.forEach((sum, word) => expect(sum).toBeCloseTo(flow.rows[0]?.[word] ?? NaN));
  });
});

test("only the layers above which words still hold a quarter tell something", () => {
  const rows = [0.1, 0.2, 0.3, 1].map((plain) => Float64Array.from([1 - plain, plain]));
  const flow = { layers: 3, rows, edges: [{ layer: 2, from: 1, to: 0, amount: 0.5 }] };
  expect(lowestTelling(flow, (word) => word === 1)).toBe(2);
  expect(lowestTelling(flow, () => true)).toBe(0);
  expect(lowestTelling(flow, () => false)).toBe(2);
  const upper = above(flow, 2);
  expect(upper.layers).toBe(1);
  expect(upper.rows[0]).toBe(rows[2]);
  expect(upper.edges).toEqual([{ layer: 0, from: 1, to: 0, amount: 0.5 }]);
});

test("words with a label have room, the others share what is left", () => {
  const places = placed(500, new Set([3, 4, 499]), 300, 20);
  expect((places[4] ?? 0) - (places[3] ?? 0)).toBeCloseTo(20);
  expect(places[0]).toBeGreaterThanOrEqual(0);
  expect(places[499]).toBeLessThanOrEqual(300);
  for (let word = 1; word < 500; word++) {
    expect(places[word]).toBeGreaterThan(places[word - 1] ?? NaN);
  }
  const few = placed(2, new Set([0, 1]), 100, 20);
  expect([...few]).toEqual([25, 75]);
});

test("labels are moved apart and stay inside", () => {
  const found = spread([10, 11, 12, 99], 10, 0, 100);
  expect(found).toEqual([10, 20, 30, 99]);
  const low = spread([95, 96, 97], 10, 0, 100);
  expect(low).toEqual([80, 90, 100]);
});

test("cuts names by their width", () => {
  expect(["deposited", "진흙투성이", "진흙"].map((name) => fitted(name, 8))).toEqual([
    "deposit…",
    "진흙투…",
    "진흙",
  ]);
});
