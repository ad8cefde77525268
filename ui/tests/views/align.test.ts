import { describe, expect, test } from "vitest";

import { aligned, changeOf, changes, partner } from "../../src/views/compare/align";
import { readingFrom } from "./texts";

const first = readingFrom([["", "The"], [" ", "bank"], [" ", "of"], [" ", "the"], [" ", "river"]]);
const second = readingFrom([["", "The"], [" ", "bank"], [" ", "lends", 2], [" ", "the"], [" ", "money"]]);

describe("two texts", () => {
  const alignment = aligned(first, second, [[0, 0, 2], [3, 4, 1]]);

  test("words are the same if all their tokens are", () => {
    expect([...alignment.there]).toEqual([0, 1, -1, 3, -1]);
    expect([...alignment.back]).toEqual([0, 1, -1, 3, -1]);
    // Only one of two tokens is the same.
    expect([...aligned(second, second, [[2, 2, 1]]).there]).toEqual([-1, -1, -1, -1, -1]);
  });

  test("a word without a partner is compared with its namesake, or with nothing", () => {
    expect(partner(1, first, second, alignment)).toBe(1);
    expect(partner(4, first, second, alignment)).toBeNull();
    const other = readingFrom([["", "a"], [" ", "River"], [" ", "river"]]);
    expect(partner(4, first, other, aligned(first, other, []))).toBe(1);
  });

  test("the largest change first, words of one text alone with no change", () => {
    const one = { shares: [0.1, 0.4, 0.2, 0.2, 0.1], kinds: kindsOf(1) };
    const other = { shares: [0.2, 0.5, 0.15, 0.05, 0.1], kinds: kindsOf(1) };
    const found = changes(one, other, alignment, [1, 1]);
    expect(found.map((row) => [row.first, row.second])).toEqual([
      [2, null],
      [3, 3],
      [null, 2],
      [0, 0],
      [4, null],
      [null, 4],
      [1, 1],
    ]);
    expect(changeOf(found[1] as never)).toBeCloseTo(-0.15);
    expect(changeOf(found[0] as never)).toBeNull();
    expect(found.at(-1)?.kind).toBe("itself");
  });
});

function kindsOf(chosen: number) {
  return [0, 1, 2, 3, 4].map((word) => (word === chosen ? ("itself" as const) : ("word" as const)));
}
