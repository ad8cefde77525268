import { createSubscriber } from "svelte/reactivity";

import { type Source, fields } from "../source/source";

const CHUNK = 8192;

export interface Words {
  readonly text: readonly string[];
  /** What stands before each word: spaces, line ends. */
  readonly before: readonly string[];
  /** The tokens of each word, numbered in the text. */
  readonly tokens: readonly (readonly number[])[];
  /** Numbers of words, in the text, that the tokenizer added. */
  readonly special: readonly number[];
}

/** The answer to `labels`. */
export interface Chunk {
  readonly start: number;
  readonly tokens: number;
  readonly labels: readonly string[];
  readonly special: readonly number[];
  readonly first_word: number;
  readonly words: Words;
}

/** Labels and words of one text of a recording, fetched in chunks of 8,192 tokens and kept. */
export class Labels {
  private readonly asked = new Map<number, Promise<Chunk>>();
  private readonly here = new Map<number, Chunk>();
  private arrived = (): void => {};
  private readonly follow = createSubscriber((update) => {
    this.arrived = update;
  });

  constructor(
    private readonly source: Source,
    private readonly recording: number,
    private readonly text: number,
    private readonly batch: number,
  ) {}

  /**
   * The label, if its chunk is here. Otherwise the chunk is asked for; who reads this in an effect
   * or a template is told when it arrives, and `arrived` is called.
   */
  at(token: number, arrived?: () => void): string | undefined {
    this.follow();
    const chunk = this.here.get(Math.floor(token / CHUNK));
    if (chunk) return chunk.labels[token % CHUNK];
    void this.chunk(token).then(arrived, () => {}); // a failure is told to who needs the chunk
    return undefined;
  }

  /** The chunk that holds a token. */
  chunk(token: number): Promise<Chunk> {
    const number = Math.floor(token / CHUNK);
    let asked = this.asked.get(number);
    if (!asked) {
      asked = this.fetch(number);
      this.asked.set(number, asked);
      asked.catch(() => this.asked.delete(number));
    }
    return asked;
  }

  /** All chunks of a text of so many tokens, in order. */
  async *chunks(tokens: number): AsyncGenerator<Chunk> {
    for (let start = 0; start < tokens; start += CHUNK) yield await this.chunk(start);
  }

  private async fetch(number: number): Promise<Chunk> {
    const chunk = await fields<Chunk>(this.source, "labels", {
      recording: this.recording,
      text: this.text,
      batch: this.batch,
      start: number * CHUNK,
      count: CHUNK,
    });
    this.here.set(number, chunk);
    this.arrived();
    return chunk;
  }
}
