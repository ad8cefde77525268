/** The words of a text, and what tokens they are made of. */
import type { Labels } from "./labels";

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

/** All words of a text of so many tokens. */
export async function readingOf(labels: Labels, tokens: number): Promise<Reading> {
  const words: Word[] = [];
  const names: string[] = [];
  for await (const chunk of labels.chunks(tokens)) {
    for (const label of chunk.labels) names.push(label);
    const special = new Set(chunk.words.special);
    chunk.words.text.forEach((text, place) => {
      const number = chunk.first_word + place;
      words.push({
        number,
        text,
        before: chunk.words.before[place] ?? "",
        tokens: chunk.words.tokens[place] ?? [],
        special: special.has(number),
      });
    });
  }
  return new Reading(words, names);
}
