/** Which words of two texts are the same, and how their shares differ. */
import type { Reading } from "../../state/reading";
import type { Kind } from "../text/shares";

/** Tokens a … a+n−1 of the first text are tokens b … b+n−1 of the second. */
export type Block = readonly [a: number, b: number, n: number];

export interface Alignment {
  /** Word of the first text → the same word of the second; −1 where there is none. */
  readonly there: Int32Array;
  readonly back: Int32Array;
}

const MOST_CELLS = 4_000_000;

/**
 * The longest common sequence of words, whatever tokens they are cut into. Of texts too long for
 * that, `blocks` says which tokens are the same.
 */
export function aligned(first: Reading, second: Reading, blocks: readonly Block[]): Alignment {
  const there = new Int32Array(first.words.length).fill(-1);
  const back = new Int32Array(second.words.length).fill(-1);
  const match = (one: number, other: number): void => {
    there[one] = other;
    back[other] = one;
  };
  const a = named(first);
  const b = named(second);
  let start = 0;
  while (start < a.length && start < b.length && same(a, b, start, start)) start++;
  let tail = 0;
  while (
    tail < Math.min(a.length, b.length) - start &&
    same(a, b, a.length - 1 - tail, b.length - 1 - tail)
  )
    tail++;
  for (let at = 0; at < start; at++) match(number(a, at), number(b, at));
  for (let at = 1; at <= tail; at++) match(number(a, a.length - at), number(b, b.length - at));
  const [rows, columns] = [a.length - start - tail, b.length - start - tail];
  if (rows * columns > MOST_CELLS) {
    byTokens(first, second, blocks, match);
    return { there, back };
  }
  // length[r][c]: of the longest common sequence of what follows words r and c.
  const length = new Uint16Array((rows + 1) * (columns + 1));
  for (let r = rows - 1; r >= 0; r--) {
    for (let c = columns - 1; c >= 0; c--) {
      const here = r * (columns + 1) + c;
      length[here] = same(a, b, start + r, start + c)
        ? (length[here + columns + 2] ?? 0) + 1
        : Math.max(length[here + 1] ?? 0, length[here + columns + 1] ?? 0);
    }
  }
  for (let r = 0, c = 0; r < rows && c < columns; ) {
    const here = r * (columns + 1) + c;
    if (same(a, b, start + r, start + c)) match(number(a, start + r++), number(b, start + c++));
    else if ((length[here + 1] ?? 0) >= (length[here + columns + 1] ?? 0)) c++;
    else r++;
  }
  return { there, back };
}

interface Named {
  readonly number: number;
  readonly name: string;
}

/** Names of the words; a special token is the same only as itself. */
function named(reading: Reading): Named[] {
  return reading.words.map(({ number, text, special }) => ({
    number,
    name: special ? `\0${text}` : text.toLowerCase(),
  }));
}

function same(a: readonly Named[], b: readonly Named[], one: number, other: number): boolean {
  return a[one]?.name === b[other]?.name;
}

function number(words: readonly Named[], at: number): number {
  return words[at]?.number ?? 0;
}

/** Two words are the same if their first tokens are, and so are as many tokens. */
function byTokens(
  first: Reading,
  second: Reading,
  blocks: readonly Block[],
  match: (one: number, other: number) => void,
): void {
  for (const [a, b, n] of blocks) {
    for (let at = 0; at < n; at++) {
      const one = first.at(a + at);
      const other = second.at(b + at);
      if (!one || !other || one.tokens[0] !== a + at || other.tokens[0] !== b + at) continue;
      if (one.tokens.length !== other.tokens.length || at + one.tokens.length > n) continue;
      match(one.number, other.number);
    }
  }
}

/** The word of the second text that is read like one of the first: the same, or a namesake. */
export function partner(
  word: number,
  first: Reading,
  second: Reading,
  alignment: Alignment,
): number | null {
  const same = alignment.there[word] ?? -1;
  if (same >= 0) return same;
  const own = first.words[word];
  if (!own) return null;
  const plain = (text: string): string => text.toLowerCase();
  const before = first.words
    .slice(0, word)
    .filter((one) => plain(one.text) === plain(own.text)).length;
  const namesakes = second.words.filter((one) => plain(one.text) === plain(own.text));
  return (namesakes[before] ?? namesakes.at(-1))?.number ?? null;
}

export interface Change {
  /** Its number in the first and the second text; `null` where it isn't there. */
  readonly first: number | null;
  readonly second: number | null;
  /** `null` where it isn't there or cannot be seen. */
  readonly from: number | null;
  readonly to: number | null;
  readonly kind: Kind;
}

interface Side {
  readonly shares: ArrayLike<number>;
  readonly kinds: readonly Kind[];
}

export function changeOf(one: Change): number | null {
  return one.from === null || one.to === null ? null : one.to - one.from;
}

/**
 * All words of both texts: first those that are in both, by how much they differ, then those of
 * one text, by their share; what stands apart comes last.
 */
export function changes(
  one: Side,
  other: Side,
  alignment: Alignment,
  chosen: readonly [first: number, second: number],
): Change[] {
  const seen = (side: Side, word: number): number | null =>
    side.kinds[word] === "hidden" ? null : (side.shares[word] ?? 0);
  const found: Change[] = [
    {
      first: chosen[0],
      second: chosen[1],
      from: seen(one, chosen[0]),
      to: seen(other, chosen[1]),
      kind: "itself",
    },
  ];
  one.kinds.forEach((kind, first) => {
    if (first === chosen[0]) return;
    const match = alignment.there[first] ?? -1;
    const second = match < 0 || match === chosen[1] ? null : match;
    const to = second === null ? null : seen(other, second);
    const shown = kind === "hidden" && second !== null ? (other.kinds[second] ?? kind) : kind;
    found.push({ first, second, from: seen(one, first), to, kind: shown });
  });
  other.kinds.forEach((kind, second) => {
    if (second === chosen[1]) return;
    const match = alignment.back[second] ?? -1;
    if (match >= 0 && match !== chosen[0]) return;
    found.push({ first: null, second, from: null, to: seen(other, second), kind });
  });
  const size = (change: Change): number =>
    Math.abs(changeOf(change) ?? change.from ?? change.to ?? 0);
  const group = (change: Change): number =>
    change.kind !== "word" ? 2 : changeOf(change) === null ? 1 : 0;
  return found
    .filter((change) => change.from !== null || change.to !== null)
    .sort((a, b) => group(a) - group(b) || size(b) - size(a));
}
