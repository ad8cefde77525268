/** What follows from all weights of one head, for a page that nobody answers. */
import type { Answer, Parameters, Table } from "./source";

const TILE = 256;

export interface Kind {
  /** How many digits after the point were kept. */
  readonly digits: number;
  readonly causal: boolean;
  /** Row i is token i + firstQuery. */
  readonly firstQuery: number;
  readonly note: string;
  readonly measure: string;
}

export class Weights {
  private readonly queries: number;
  private readonly keys: number;

  constructor(
    private readonly table: Table<Float32Array>,
    private readonly kind: Kind,
  ) {
    [this.queries = 0, this.keys = 0] = table.shape;
  }

  answer(name: string, parameters: Parameters): Answer | undefined {
    const number = (parameter: string): number => Number(parameters[parameter] ?? 0);
    switch (name) {
      case "tile":
        return this.tile(number("level"), number("x"), number("y"), {
          mean: parameters.how === "mean",
          scaled: number("scaled") === 1,
        });
      case "row":
        return this.row(number("query"));
      case "column":
        return this.column(number("key"));
      case "weight":
        return this.weight(number("query"), number("key"));
      case "reads":
        return this.reads(
          String(parameters.tokens).split(",").map(Number),
          parameters.side === "read_by",
        );
      default:
        return undefined;
    }
  }

  private at(query: number, key: number): number {
    return this.table.values[query * this.keys + key] ?? 0;
  }

  /** How many keys a query sees, those at the end of a causal row apart. */
  private visible(query: number): number {
    const seen = this.kind.causal ? query + 1 + this.keys - this.queries : this.keys;
    return Math.min(Math.max(seen, 0), this.keys);
  }

  private tile(
    level: number,
    x: number,
    y: number,
    { mean, scaled }: { mean: boolean; scaled: boolean },
  ): Answer {
    const size = 2 ** level;
    const first = { row: y * TILE * size, column: x * TILE * size };
    const rows = Math.min(TILE, Math.ceil((this.queries - first.row) / size));
    const columns = Math.min(TILE, Math.ceil((this.keys - first.column) / size));
    const values = new Float32Array(rows * columns);
    const lastRow = Math.min(first.row + rows * size, this.queries);
    const lastColumn = Math.min(first.column + columns * size, this.keys);
    for (let query = first.row; query < lastRow; query++) {
      const divisor = scaled ? this.largest(query) || 1 : 1;
      const row = Math.floor((query - first.row) / size) * columns;
      for (let key = first.column; key < lastColumn; key++) {
        const cell = row + Math.floor((key - first.column) / size);
        const weight = this.at(query, key) / divisor;
        values[cell] = mean ? (values[cell] ?? 0) + weight : Math.max(values[cell] ?? 0, weight);
      }
    }
    if (mean) {
      for (let row = 0; row < rows; row++) {
        const tall = Math.min(size, this.queries - first.row - row * size);
        for (let column = 0; column < columns; column++) {
          const wide = Math.min(size, this.keys - first.column - column * size);
          const cell = row * columns + column;
          values[cell] = (values[cell] ?? 0) / (tall * wide);
        }
      }
    }
    return {
      fields: { exact: true, digits: this.kind.digits },
      arrays: { values: { shape: [rows, columns], type: "float32", values } },
    };
  }

  private largest(query: number): number {
    return this.table.values
      .subarray(query * this.keys, (query + 1) * this.keys)
      .reduce((one, other) => Math.max(one, other), 0);
  }

  private row(query: number): Answer {
    const weights = this.table.values.slice(query * this.keys, (query + 1) * this.keys);
    const visible = this.visible(query);
    const ranks = ranked(weights, (key) => key < visible);
    const some = weights.filter((weight) => weight > 0);
    const sum = some.reduce((one, other) => one + other, 0);
    const entropy = -some.reduce((total, weight) => total + weight * Math.log(weight), 0);
    return {
      fields: { sum, entropy, visible, sink: 0, digits: this.kind.digits },
      arrays: {
        weights: { shape: [this.keys], type: "float32", values: weights },
        ranks: { shape: [this.keys], type: "int32", values: ranks },
      },
    };
  }

  private column(key: number): Answer {
    const weights = Float32Array.from({ length: this.queries }, (_, query) => this.at(query, key));
    const ranks = ranked(weights, (query) => key < this.visible(query));
    return {
      fields: { received: weights.reduce((one, other) => one + other, 0) },
      arrays: {
        weights: { shape: [this.queries], type: "float32", values: weights },
        ranks: { shape: [this.queries], type: "int32", values: ranks },
      },
    };
  }

  private weight(query: number, key: number): Answer {
    const ranks = this.row(query).arrays.ranks?.values;
    return {
      fields: {
        weight: this.at(query, key),
        rank: ranks?.[key] || null,
        visible: this.visible(query),
        score: null,
        digits: this.kind.digits,
      },
      arrays: {},
    };
  }

  private reads(tokens: readonly number[], readBy: boolean): Answer {
    const { firstQuery, causal, note, measure } = this.kind;
    const shares = new Float32Array(readBy ? this.queries : this.keys);
    for (const token of tokens) {
      for (let at = 0; at < shares.length; at++) {
        const weight = readBy
          ? this.at(at, token)
          : this.at(token - firstQuery, at) / tokens.length;
        shares[at] = (shares[at] ?? 0) + weight;
      }
    }
    const last = Math.max(...tokens) + 1;
    const start = Math.min(...tokens);
    const hidden = !causal ? [] : readBy ? [[0, start]] : [[last, this.keys]];
    return {
      fields: {
        measure,
        note,
        first: causal ? 0 : null,
        hidden: hidden.filter(([from = 0, to = 0]) => from < to),
        heads: [],
      },
      arrays: { shares: { shape: [shares.length], type: "float32", values: shares } },
    };
  }
}

/** 1 for the largest of those that count, 0 for the others; of equals the first comes first. */
function ranked(values: Float32Array, counts: (at: number) => boolean): Int32Array {
  const order = [...values.keys()]
    .filter(counts)
    .sort((one, other) => (values[other] ?? 0) - (values[one] ?? 0) || one - other);
  const ranks = new Int32Array(values.length);
  order.forEach((at, rank) => (ranks[at] = rank + 1));
  return ranks;
}
