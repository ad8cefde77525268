import { describe, expect, test } from "vitest";

import { type Measure, broken, drawn, lineOf } from "../../src/views/text/lines";
import { readingFrom } from "./texts";

const measure: Measure = (text) => [...text].length;

function lines(words: Parameters<typeof readingFrom>[0], width: number): string[] {
  return broken(readingFrom(words).words, width, measure).map((line) =>
    line.pieces.map((piece) => piece.before + piece.text).join(""),
  );
}

describe("lines", () => {
  test("break between words only, and a comma stays with its word", () => {
    expect(lines([["", "one"], [" ", "two"], ["", ","], [" ", "three"]], 8)).toEqual([
      "one two,",
      "three",
    ]);
    expect(lines([["", "one"], [" ", "two"], ["", ","], [" ", "three"]], 7)).toEqual([
      "one",
      "two,",
      "three",
    ]);
  });

  test("line ends of the text are kept, empty lines too", () => {
    expect(lines([["", "a"], ["\n\n  ", "b"], ["\r\n", "c"]], 10)).toEqual(["a", "", "  b", "c"]);
  });

  test("a word that is a line end shows it and ends its line", () => {
    expect(lines([["", "a"], ["", "\n"], ["", "b"]], 10)).toEqual(["a↵", "b"]);
  });

  test("a word wider than a line is cut between signs that people see", () => {
    const found = broken(readingFrom([["", "가나👩‍👩‍👧다라"]]).words, 3, measure);
    const text = found.map((line) => line.pieces.map((piece) => piece.text).join(""));
    expect(text.join("")).toBe("가나👩‍👩‍👧다라");
    expect(text).toContain("👩‍👩‍👧");
    expect(found.flatMap((line) => line.pieces).map((piece) => piece.first)).toEqual(
      text.map((_, at) => at === 0),
    );
  });

  test("words of Chinese and Japanese break without a space", () => {
    expect(lines([["", "注意"], ["", "机制"]], 3)).toEqual(["注意", "机制"]);
  });

  test("every word is in exactly one line, and is known to be there", () => {
    const reading = readingFrom(
      Array.from({ length: 500 }, (_, at) => [at % 7 ? " " : "\n", "x".repeat(1 + (at % 9))] as const),
    );
    const found = broken(reading.words, 40, measure);
    const words = found.flatMap((line) => line.pieces).map((piece) => piece.word);
    expect(words).toEqual(reading.words.map((word) => word.number));
    const place = lineOf(found, 500);
    found.forEach((line, number) => {
      for (const piece of line.pieces) expect(place[piece.word]).toBe(number);
    });
  });

  test("what nobody would see has a sign, and markup is text", () => {
    const word = (text: string, special = false) => ({
      number: 0, text, before: "", tokens: [0], special,
    });
    expect(drawn(word(" "))).toBe("␣");
    expect(drawn(word("\t"))).toBe("⇥");
    expect(drawn(word("</script>"))).toBe("</script>");
    expect(drawn(word("<s>", true))).toBe("<s>");
  });
});
