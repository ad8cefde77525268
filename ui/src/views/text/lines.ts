/**
 * A text broken into lines, so that only the lines in sight need to be drawn.
 *
 * The browser would break lines by itself, but only of a text that is in the page as a whole: too
 * slow for 8,192 tokens that change their shade together. Here every line has the same height.
 */
import type { Word } from "../../state/reading";

export interface Piece {
  readonly word: number;
  readonly text: string;
  /** Space before it on its line. */
  readonly before: string;
  /** A word too long for a line is in several pieces; only the first is the word's own element. */
  readonly first: boolean;
}

export interface Line {
  readonly pieces: readonly Piece[];
}

/** How wide a text is drawn, in pixels; `special` for the frame around a special token. */
export type Measure = (text: string, special: boolean) => number;

/** What is drawn for a word: what no one would see has a sign. */
export function drawn(word: Word): string {
  if (word.special) return word.text;
  const text = word.text.replace(/\r\n|\r|\n/g, "↵").replaceAll("\t", "⇥");
  return /^ *$/.test(text) ? "␣".repeat(Math.max(1, text.length)) : text;
}

/** How many lines a word ends by itself: those of its line ends. */
function ends(word: Word): number {
  return word.special ? 0 : (word.text.match(/\r\n|\r|\n/g)?.length ?? 0);
}

const CJK = /[\u3040-\u30ff\u3400-\u9fff\uff00-\uffef]/;
const MOST_INDENT = 0.3; // of a line

export function broken(words: readonly Word[], width: number, measure: Measure): Line[] {
  const lines: Line[] = [];
  let pieces: Piece[] = [];
  let used = 0;

  const end = (): void => {
    lines.push({ pieces });
    pieces = [];
    used = 0;
  };
  const put = (piece: Piece, space: number): void => {
    pieces.push(piece);
    used += space;
  };

  for (let at = 0; at < words.length; ) {
    const stop = clusterEnd(words, at);
    const head = words[at] as Word;
    const parts = head.before.split(/\r\n|\r|\n/);
    for (let turn = 1; turn < parts.length; turn++) end();
    let gap = tabless(parts.at(-1) ?? "");
    if (pieces.length === 0) gap = indent(gap, width, measure);
    const sizes = words.slice(at, stop).map((word) => measure(drawn(word), word.special));
    const whole = sizes.reduce((sum, size) => sum + size, measure(gap, false));
    if (pieces.length > 0 && used + whole > width) {
      end();
      gap = "";
    }
    for (let place = at; place < stop; place++) {
      const word = words[place] as Word;
      const before = place === at ? gap : "";
      const size = (sizes[place - at] as number) + measure(before, false);
      if (size > width) {
        for (const [number, text] of split(drawn(word), width, measure).entries()) {
          if (pieces.length > 0) end();
          put({ word: word.number, text, before: "", first: number === 0 }, measure(text, false));
        }
        continue;
      }
      if (pieces.length > 0 && used + size > width) end();
      put({ word: word.number, text: drawn(word), before, first: true }, size);
      for (let turn = ends(word); turn > 0; turn--) end();
    }
    at = stop;
  }
  if (pieces.length > 0 || lines.length === 0) end();
  return lines;
}

/** Words that stand together without a space between them break only together. */
function clusterEnd(words: readonly Word[], start: number): number {
  let stop = start + 1;
  while (stop < words.length) {
    const word = words[stop] as Word;
    const before = words[stop - 1] as Word;
    if (word.before !== "" || word.special || before.special) break;
    if (CJK.test(before.text.at(-1) ?? "") && CJK.test(word.text.charAt(0))) break;
    stop++;
  }
  return stop;
}

function tabless(gap: string): string {
  return gap.replaceAll("\t", "    ");
}

function indent(gap: string, width: number, measure: Measure): string {
  if (measure(gap, false) <= MOST_INDENT * width) return gap;
  const one = measure(" ", false) || 1;
  return " ".repeat(Math.floor((MOST_INDENT * width) / one));
}

/** The parts of a word that is wider than a line, cut between signs that people see. */
function split(text: string, width: number, measure: Measure): string[] {
  const signs = [...new Intl.Segmenter().segment(text)].map((one) => one.segment);
  const parts: string[] = [];
  let part = "";
  for (const sign of signs) {
    if (part && measure(part + sign, true) > width) {
      parts.push(part);
      part = "";
    }
    part += sign;
  }
  return [...parts, part];
}

/** Line of each word (of its first piece). */
export function lineOf(lines: readonly Line[], words: number): Int32Array {
  const found = new Int32Array(words);
  lines.forEach((line, number) => {
    for (const piece of line.pieces) if (piece.first) found[piece.word] = number;
  });
  return found;
}
