import { expect, test } from "vitest";

import { decimal, exact, percent, points, significant, times } from "../../src/words/numbers";

const THIN = "\u202f";

test("percentages say when they are less than they show", () => {
  expect(percent(0.1234, "en")).toBe(`12.3${THIN}%`);
  expect(percent(0.1234, "ko")).toBe("12.3%");
  expect(percent(0.0001, "en")).toBe(`<${THIN}0.1${THIN}%`);
  expect(percent(0, "en")).toBe(`0.0${THIN}%`);
  expect(percent(1, "en")).toBe(`100.0${THIN}%`);
});

test("numbers to be cited have five digits", () => {
  expect(exact(0.123456, "ko")).toBe("0.12346 (12.346%)");
});

test("significant digits, with powers of ten only at the ends", () => {
  expect(significant(1234.5678, 6)).toBe("1234.57");
  expect(significant(-0.00123456, 3)).toBe("−0.00123");
  expect(significant(1.5e-9, 3)).toBe("1.50·10⁻⁹");
  expect(significant(0)).toBe("0");
  expect(significant(-Infinity)).toBe("−∞");
});

test("differences and ratios have their signs", () => {
  expect(points(0.021)).toBe("+2.1");
  expect(points(-0.021)).toBe("−2.1");
  expect(points(-0.0001)).toBe("0.0");
  expect(times(2.345)).toBe("×2.3");
  expect(times(1234)).toBe("×1,234");
  expect(decimal(-1.234, 2)).toBe("−1.23");
});
