import { describe, expect, test } from "vitest";

import { type Row, readFilter } from "../../src/views/heads/filter";

const names = new Map([
  ["layer", "layer"],
  ["head", "head"],
  ["first", "first"],
  ["first token", "first"],
  ["첫 토큰", "first"],
  ["induction", "induction"],
  ["most_read", "most_read"],
  ["most_read_share", "most_read_share"],
  ["most_read_token", "most_read_token"],
]);

function row(map: number, number: number, values: Row["values"] = {}, marked = false): Row {
  return { map, number, marked, values };
}

function passes(text: string, one: Row): boolean {
  const found = readFilter(text, names);
  if (!("test" in found)) throw new Error(`${found.kind}: ${found.text}`);
  return found.test(one);
}

describe("filters", () => {
  test("compare a column with a number or a percentage", () => {
    const one = row(3, 1, { induction: 0.45, first: 0.3 });
    expect(passes("induction > 0.4", one)).toBe(true);
    expect(passes("induction>45%", one)).toBe(false);
    expect(passes("induction >= 45 %", one)).toBe(true);
    expect(passes("First Token ≤ .3", one)).toBe(true);
    expect(passes("첫 토큰 = 30%", one)).toBe(true);
    expect(passes("layer < 3", one)).toBe(false);
  });

  test("the longest name counts", () => {
    const one = row(0, 0, { most_read: 7, most_read_share: 0.5, most_read_token: "␣the" });
    expect(passes("most_read_share > 0.4", one)).toBe(true);
    expect(passes("most_read = 7", one)).toBe(true);
    expect(passes('most read token = "the"', one)).toBe(true);
    expect(passes("most_read_token != 'the'", one)).toBe(false);
  });

  test("and binds more tightly than or; not and brackets", () => {
    const one = row(1, 0, { induction: 0.1, first: 0.9 });
    expect(passes("first > 0.5 or induction > 0.5 and layer = 7", one)).toBe(true);
    expect(passes("(first > 0.5 or induction > 0.5) and layer = 7", one)).toBe(false);
    expect(passes("not induction > 0.5, layer = 1", one)).toBe(true);
    expect(passes("!(layer = 1)", one)).toBe(false);
  });

  test("a head by name, and those that are marked", () => {
    expect(passes("12.3", row(12, 3))).toBe(true);
    expect(passes("12.3 or 0.1", row(0, 1))).toBe(true);
    expect(passes("12.3", row(12, 30))).toBe(false);
    expect(passes("marked", row(0, 0, {}, true))).toBe(true);
  });

  test("what is unknown passes no comparison", () => {
    expect(passes("induction < 1", row(0, 0, { induction: null }))).toBe(false);
  });

  test("say which columns they need", () => {
    const found = readFilter("induction > 0 and first < 1", names);
    expect("columns" in found && found.columns).toEqual(["induction", "first"]);
  });

  test.each([
    ["indction > 0.4", "name", "indction"],
    ["induction 0.4", "compare", "0.4"],
    ["induction > much", "value", "much"],
    ["induction > 0.4 layer < 3", "rest", "layer < 3"],
    ["(induction > 0.4", "rest", ""],
    ["firsts > 1", "name", "firsts"],
    ["", "name", ""],
  ])("%s is not understood", (text, kind, rest) => {
    expect(readFilter(text, names)).toEqual({ kind, text: rest });
  });
});
