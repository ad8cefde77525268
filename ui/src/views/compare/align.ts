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

/** Two words are the same if their first tokens are, and so are as many tokens. */
export function aligned(
  first: Reading,
  second: Reading,
  blocks: readonly Block[],
): Alignment {
  const there = new Int32Array(first.words.length).fill(-1);
  const back = new Int32Array(second.words.length).fill(-1);
  for (const [a, b, n] of blocks) {
    for (let at = 0; at < n; at++) {
      const one = first.at(a + at);
      const other = second.at(b + at);
      if (!one || !other || one.tokens[0] !== a + at || other.tokens[0] !== b + at) continue;
      if (one.tokens.length !== other.tokens.length || at + one.tokens.length > n) continue;
      there[one.number] = other.number;
      back[other.number] = one.number;
    }
  }
  return { there, back };
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

/** All words of both texts, those that differ most first; what stands apart comes last. */
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
  return found
    .filter((change) => change.from !== null || change.to !== null)
    .sort(
      (a, b) => Number(a.kind !== "word") - Number(b.kind !== "word") || size(b) - size(a),
    );
}
