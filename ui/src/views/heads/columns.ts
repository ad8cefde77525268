/** How the columns of the report are written, and which a scatter plot can show. */
import type { Cell } from "../../state/report.svelte";
import type { Language } from "../../words";
import { decimal, percent } from "../../words/numbers";

const SHARES = new Set([
  "first",
  "itself",
  "previous",
  "most_read_share",
  "sink_rate",
  "confidence",
  "positional",
  "duplicate",
  "induction",
  "prefix_matching",
  "special",
]);
const DIGITS: Record<string, number> = {
  entropy: 2,
  distance: 1,
  concentration: 2,
  window: 0,
  most_read: 0,
  positional_offset: 0,
  layer: 0,
  head: 0,
};

/** Columns that come only when all are asked for. */
export const FURTHER = [
  "sink_rate",
  "concentration",
  "confidence",
  "positional",
  "positional_offset",
  "window",
  "duplicate",
  "induction",
  "prefix_matching",
  "special",
];
export const USUAL = [
  "entropy",
  "distance",
  "first",
  "itself",
  "previous",
  "most_read",
  "most_read_share",
  "most_read_token",
];

export function isText(column: string): boolean {
  return column === "most_read_token";
}

export function isShare(column: string): boolean {
  return SHARES.has(column);
}

export function written(column: string, value: Cell | undefined, language: Language): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (isShare(column)) return percent(value, language);
  const text = decimal(value, DIGITS[column] ?? 2);
  return column === "positional_offset" && value > 0 ? `+${text}` : text;
}

/** Round numbers that divide a range into about `most` parts. */
export function ticks(low: number, high: number, most = 5): number[] {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((one) => one * power >= rough) ?? 10);
  const found: number[] = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) {
    found.push(Number((at * step).toPrecision(12)));
  }
  return found;
}
