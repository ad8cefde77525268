import { describe, expect, test } from "vitest";

import { folded, kinds, largest, ranked } from "../../src/views/text/shares";
import { readingFrom } from "./texts";

const reading = readingFrom([
  ["", "[CLS]"],
  ["", "straw", 2],
  [" ", "bank"],
  [" ", "river"],
  ["", "[SEP]"],
]);

describe("shares by words", () => {
  test("what a word gives is the sum of its tokens, what it takes their mean", () => {
    const tokens = [0.4, 0.1, 0.2, 0.05, 0.2, 0.05];
    expect([...folded(reading, tokens, "reads")].map((one) => one.toFixed(3))).toEqual([
      "0.400", "0.300", "0.050", "0.200", "0.050",
    ]);
    expect(folded(reading, tokens, "read_by")[1]).toBeCloseTo(0.15);
  });

  test("the word itself, the first token, special and hidden words are no plain words", () => {
    expect(kinds(reading, 2, null, [])).toEqual(["special", "word", "itself", "word", "special"]);
    expect(kinds(reading, 2, 0, [[4, 6]])).toEqual(["first", "word", "itself", "hidden", "hidden"]);
    // The word itself counts as itself even where it holds the first token.
    expect(kinds(reading, 0, 0, [])[0]).toBe("itself");
    // A word of which one token can be seen is no hidden word.
    expect(kinds(reading, 2, null, [[1, 2]])[1]).toBe("word");
  });

  test("plain words are ranked, the others stand apart, nothing is divided away", () => {
    const shares = folded(reading, [0.4, 0.1, 0.2, 0.05, 0.2, 0.05], "reads");
    const what = kinds(reading, 2, null, []);
    const { words, apart } = ranked(shares, what);
    expect(words.map((one) => one.word)).toEqual([1, 3]);
    expect(apart.map((one) => one.word)).toEqual([2, 0, 4]);
    const all = [...words, ...apart].reduce((sum, one) => sum + one.share, 0);
    expect(all).toBeCloseTo(1);
    expect(largest(shares, what)).toBeCloseTo(0.3);
  });
});
