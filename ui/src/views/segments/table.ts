/** What each segment of a text reads of each: the answer to `segments`. */
import { type Answer, float32 } from "../../source/source";
import type { Reading } from "../../state/reading";
import { drawn } from "../text/lines";

export interface Segment {
  readonly name: string;
  /** Its tokens, [first, stop). */
  readonly first: number;
  readonly stop: number;
  readonly count: number;
}

export interface Apart {
  readonly kind: string;
  readonly count: number;
}

export interface Tables {
  readonly how: string;
  readonly segments: readonly Segment[];
  readonly apart: readonly Apart[];
  readonly measure: "raw" | "norm";
  /** S rows of C = S + apart columns. */
  readonly shares: Float32Array;
  readonly even: Float32Array;
  readonly columns: number;
}

export function tables(answer: Answer): Tables {
  const found = answer.fields as Pick<Tables, "how" | "segments" | "apart" | "measure">;
  return {
    ...found,
    shares: float32(answer, "shares").values,
    even: float32(answer, "even").values,
    columns: found.segments.length + found.apart.length,
  };
}

export interface Cell {
  readonly reader: number;
  readonly column: number;
  readonly share: number;
  /** The share if the reader read all that it sees alike. */
  readonly even: number;
  readonly kind: "segment" | "itself" | "apart" | "hidden";
}

export function cell(found: Tables, reader: number, column: number): Cell {
  const share = found.shares[reader * found.columns + column] ?? 0;
  const even = found.even[reader * found.columns + column] ?? 0;
  const inside = column < found.segments.length;
  return {
    reader,
    column,
    share,
    even,
    kind: !inside ? "apart" : column === reader ? "itself" : even > 0 ? "segment" : "hidden",
  };
}

/** All that a segment reads; other segments by their share, then itself and what stands apart. */
export function rankedCells(found: Tables, reader: number): { read: Cell[]; apart: Cell[] } {
  const all = Array.from({ length: found.columns }, (_, column) => cell(found, reader, column));
  const read = all.filter((one) => one.kind === "segment");
  read.sort((one, other) => other.share - one.share || one.column - other.column);
  return { read, apart: all.filter((one) => one.kind === "itself" || one.kind === "apart") };
}

/** The largest share between two different segments: the deepest colour. */
export function largestShare(found: Tables): number {
  let most = 0;
  for (let reader = 0; reader < found.segments.length; reader++) {
    for (let column = 0; column < found.segments.length; column++) {
      if (reader !== column) {
        most = Math.max(most, found.shares[reader * found.columns + column] ?? 0);
      }
    }
  }
  return most;
}

/** The beginning of a segment's text, as it was written. */
export function excerpt(reading: Reading, segment: Segment, most: number): string {
  let text = "";
  for (let token = segment.first; token < segment.stop && text.length <= most; ) {
    const word = reading.at(token);
    if (!word) break;
    text += (text ? word.before.replace(/\s+/g, " ") : "") + drawn(word).replaceAll("↵", " ");
    token = Math.max(token, word.tokens.at(-1) ?? token) + 1;
  }
  const signs = [...text.trim()];
  return signs.length > most ? `${signs.slice(0, most).join("")}…` : signs.join("");
}
