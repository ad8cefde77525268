import { describe, expect, test } from "vitest";

import { aligned, changeOf, changes, partner } from "../../src/views/compare/align";
import { readingFrom } from "./texts";

const first = readingFrom([["", "The"], [" ", "bank"], [" ", "of"], [" ", "the"], [" ", "river"]]);
const second = readingFrom([["", "The"], [" ", "bank"], [" ", "lends", 2], [" ", "the"], [" ", "money"]]);

describe("two texts", () => {
  const alignment = aligned(first, second, [[0, 0, 2], [3, 4, 1]]);

  test("the longest common sequence of words, whatever tokens they are cut into", () => {
    expect([...alignment.there]).toEqual([0, 1, -1, 3, -1]);
    expect([...alignment.back]).toEqual([0, 1, -1, 3, -1]);
    const cut = readingFrom([["", "[CLS]"], ["", "the"], [" ", "ba", 2], [" ", "bank", 3]]);
    expect([...aligned(first, cut, []).there]).toEqual([1, 3, -1, -1, -1]);
    const other = readingFrom([["", "b"], [" ", "a"], [" ", "b"], [" ", "c"]]);
    const crossed = readingFrom([["", "a"], [" ", "x"], [" ", "b"], [" ", "c"]]);
    expect([...aligned(other, crossed, []).there]).toEqual([-1, 0, 2, 3]);
  });

  test("of texts too long for that, the tokens that are the same", () => {
    const many = (word: string) =>
      readingFrom([
        ["", `${word}0`],
        ...Array.from({ length: 2100 }, (_, at) => [" ", `${word}${at % 7}`, 2] as const),
      ]);
    const [one, other] = [many("a"), many("b")];
    const { there } = aligned(one, other, [[1, 3, 5]]);
    // Token 1 begins word 1, token 3 word 2; of the last word only one token of two is the same.
    expect([...there.slice(0, 5)]).toEqual([-1, 2, 3, -1, -1]);
  });

  test("a word without a partner is compared with its namesake, or with nothing", () => {
    expect(partner(1, first, second, alignment)).toBe(1);
    expect(partner(4, first, second, alignment)).toBeNull();
    const other = readingFrom([["", "a"], [" ", "River"], [" ", "river"]]);
    const nothing = { there: new Int32Array(5).fill(-1), back: new Int32Array(3).fill(-1) };
    expect(partner(4, first, other, nothing)).toBe(1);
  });

  test("the largest change first, then words of one text alone", () => {
    const one = { shares: [0.1, 0.4, 0.2, 0.2, 0.1], kinds: kindsOf(1) };
    const other = { shares: [0.2, 0.5, 0.15, 0.05, 0.1], kinds: kindsOf(1) };
    const found = changes(one, other, alignment, [1, 1]);
    expect(found.map((row) => [row.first, row.second])).toEqual([
      [3, 3],
      [0, 0],
      [2, null],
      [null, 2],
      [4, null],
      [null, 4],
      [1, 1],
    ]);
    expect(changeOf(found[0] as never)).toBeCloseTo(-0.15);
    expect(changeOf(found[2] as never)).toBeNull();
    expect(found.at(-1)?.kind).toBe("itself");
  });
});

function kindsOf(chosen: number) {
  return [0, 1, 2, 3, 4].map((word) => (word === chosen ? ("itself" as const) : ("word" as const)));
}
