/** The words of a text, and what tokens they are made of: all of them, fetched once and kept. */
import { type Source, fields } from "../source/source";

export interface Word {
  /** Its place among the words of the text. */
  readonly number: number;
  readonly text: string;
  /** What stands between the word before and this one: spaces, line ends, or nothing. */
  readonly before: string;
  readonly tokens: readonly number[];
  /** A token that the tokenizer added; its text is its name. */
  readonly special: boolean;
}

export class Reading {
  /** Token → number of its word; −1 for a token without one. */
  readonly wordOf: Int32Array;

  constructor(
    readonly words: readonly Word[],
    readonly labels: readonly string[],
  ) {
    this.wordOf = new Int32Array(labels.length).fill(-1);
    for (const word of words) for (const token of word.tokens) this.wordOf[token] = word.number;
  }

  get tokens(): number {
    return this.labels.length;
  }

  /** The word that holds a token. */
  at(token: number): Word | undefined {
    return this.words[this.wordOf[token] ?? -1];
  }

  /** The last word that is made of letters or digits: what is looked at before anybody chooses. */
  lastPlain(): Word | undefined {
    return (
      this.words.findLast((word) => !word.special && /[\p{L}\p{N}]/u.test(word.text)) ??
      this.words.at(-1)
    );
  }
}

const CHUNK = 8192;

interface LabelsAnswer {
  readonly tokens: number;
  readonly labels: readonly string[];
  readonly first_word: number;
  readonly words: {
    readonly text: readonly string[];
    readonly before: readonly string[];
    readonly tokens: readonly (readonly number[])[];
    readonly special: readonly number[];
  };
}

export async function fetchReading(
  source: Source,
  recording: number,
  text: number,
  batch: number,
  signal?: AbortSignal,
): Promise<Reading> {
  const words: Word[] = [];
  const labels: string[] = [];
  for (let start = 0, tokens = 1; start < tokens; start += CHUNK) {
    const found = await fields<LabelsAnswer>(
      source,
      "labels",
      { recording, text, batch, start },
      signal,
    );
    tokens = found.tokens;
    for (const label of found.labels) labels.push(label);
    const special = new Set(found.words.special);
    found.words.text.forEach((text, place) => {
      const number = found.first_word + place;
      words.push({
        number,
        text,
        before: found.words.before[place] ?? "",
        tokens: found.words.tokens[place] ?? [],
        special: special.has(number),
      });
    });
  }
  return new Reading(words, labels);
}

const kept = new WeakMap<Source, Map<string, Promise<Reading>>>();

/** The same, asked for once a text. */
export function reading(
  source: Source,
  recording: number,
  text: number,
  batch: number,
): Promise<Reading> {
  let known = kept.get(source);
  if (!known) kept.set(source, (known = new Map<string, Promise<Reading>>()));
  const key = `${recording} ${text} ${batch}`;
  let found = known.get(key);
  if (!found) {
    found = fetchReading(source, recording, text, batch);
    known.set(key, found);
    found.catch(() => known.delete(key));
  }
  return found;
}
