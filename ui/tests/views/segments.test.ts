import { expect, test } from "vitest";

import { type Tables, cell, excerpt, largestShare, rankedCells } from "../../src/views/segments/table";
import { readingFrom } from "./texts";

const found: Tables = {
  how: "paragraphs",
  segments: [
    { name: "one", first: 1, stop: 3, count: 2 },
    { name: "two", first: 3, stop: 5, count: 2 },
    { name: "three", first: 5, stop: 6, count: 1 },
  ],
  apart: [{ kind: "first", count: 1 }],
  measure: "raw",
  shares: Float32Array.from([0.4, 0, 0, 0.6, 0.2, 0.5, 0, 0.3, 0.1, 0.3, 0.1, 0.5]),
  even: Float32Array.from([0.7, 0, 0, 0.3, 0.4, 0.4, 0, 0.2, 0.3, 0.3, 0.2, 0.2]),
  columns: 4,
};

test("cells know what they are", () => {
  expect(cell(found, 0, 1).kind).toBe("hidden");
  expect(cell(found, 1, 1).kind).toBe("itself");
  expect(cell(found, 2, 3).kind).toBe("apart");
  expect(cell(found, 2, 1)).toMatchObject({ kind: "segment" });
  expect(cell(found, 2, 1).share).toBeCloseTo(0.3);
});

test("other segments are ranked; itself and what stands apart come after", () => {
  const { read, apart } = rankedCells(found, 2);
  expect(read.map((one) => one.column)).toEqual([1, 0]);
  expect(apart.map((one) => one.column)).toEqual([2, 3]);
  expect(largestShare(found)).toBeCloseTo(0.3);
});

test("an excerpt is the segment's text, in one line", () => {
  const reading = readingFrom([
    ["", "<s>"], ["", "Good"], ["\n", "morning"], [" ", "to", 1], [" ", "you", 1], [" ", "all"],
  ]); // prettier-ignore
  expect(excerpt(reading, { name: "", first: 1, stop: 4, count: 3 }, 50)).toBe("Good morning to");
  expect(excerpt(reading, { name: "", first: 1, stop: 4, count: 3 }, 6)).toBe("Good m…");
});
