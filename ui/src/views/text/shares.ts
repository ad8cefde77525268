/** What a word reads, or who reads it, by words: folded, ranked, and the sink shown apart. */
import type { Reading } from "../../state/reading";

export type Side = "reads" | "read_by";
export type Kind = "word" | "itself" | "first" | "special" | "hidden";

/** First and last tokens of what is hidden, [first, stop). */
export type Ranges = readonly (readonly [number, number])[];

export interface Share {
  readonly word: number;
  readonly share: number;
  readonly kind: Kind;
}

/**
 * Shares of tokens as shares of words: what a word *gives* is the sum over its tokens, what it
 * *takes* the mean.
 */
export function folded(reading: Reading, shares: ArrayLike<number>, side: Side): Float64Array {
  const words = new Float64Array(reading.words.length);
  for (const word of reading.words) {
    let sum = 0;
    for (const token of word.tokens) sum += shares[token] ?? 0;
    words[word.number] = side === "reads" ? sum : sum / Math.max(1, word.tokens.length);
  }
  return words;
}

/** What each word is to the chosen one. A word is hidden if all of its tokens are. */
export function kinds(
  reading: Reading,
  chosen: number,
  first: number | null,
  hidden: Ranges,
): Kind[] {
  const away = (token: number): boolean =>
    hidden.some(([from, stop]) => token >= from && token < stop);
  const sink = first === null ? -1 : (reading.wordOf[first] ?? -1);
  return reading.words.map((word) => {
    if (word.number === chosen) return "itself";
    if (word.tokens.length > 0 && word.tokens.every(away)) return "hidden";
    if (word.number === sink) return "first";
    return word.special ? "special" : "word";
  });
}

/** The plain words by their share, and what stands apart in a fixed order. */
export function ranked(
  shares: ArrayLike<number>,
  kinds: readonly Kind[],
): { words: Share[]; apart: Share[] } {
  const words: Share[] = [];
  const apart: Share[] = [];
  kinds.forEach((kind, word) => {
    const one = { word, share: shares[word] ?? 0, kind };
    if (kind === "word") words.push(one);
    else if (kind !== "hidden") apart.push(one);
  });
  words.sort((one, other) => other.share - one.share || one.word - other.word);
  const order: Kind[] = ["itself", "first", "special"];
  apart.sort(
    (one, other) =>
      order.indexOf(one.kind) - order.indexOf(other.kind) || other.share - one.share,
  );
  return { words, apart };
}

/** The largest share of a plain word: what the deepest shade stands for. */
export function largest(shares: ArrayLike<number>, kinds: readonly Kind[]): number {
  let found = 0;
  kinds.forEach((kind, word) => {
    if (kind === "word") found = Math.max(found, shares[word] ?? 0);
  });
  return found;
}
