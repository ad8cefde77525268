/** A reading made by hand: words as `text` or `text|tokens`, special ones in brackets. */
import { Reading, type Word } from "../../src/state/reading";

export function readingFrom(words: readonly (readonly [before: string, text: string, tokens?: number])[]): Reading {
  let next = 0;
  const labels: string[] = [];
  const found: Word[] = words.map(([before, text, count = 1], number) => {
    const tokens = Array.from({ length: count }, () => next++);
    for (const token of tokens) labels.push(`${text}#${token}`);
    return { number, text, before, tokens, special: /^\[.*\]$/.test(text) };
  });
  return new Reading(found, labels);
}
