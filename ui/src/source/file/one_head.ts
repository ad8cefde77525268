/** What is asked of one head, from all its weights (queries, keys). */
import { type Answer, Failure } from "../source";

export interface Weights {
  readonly queries: number;
  readonly keys: number;
  readonly values: Float32Array;
  /** 1 where the mask lets see. */
  readonly visible: Int32Array;
}

const TILE = 256;

export function tile(weights: Weights, asked: URLSearchParams): Answer {
  const [level, x, y] = ["level", "x", "y"].map((name) => Number(asked.get(name))) as Triple;
  const cell = 2 ** level;
  const rows = part(weights.queries, y * TILE * cell, TILE * cell);
  const columns = part(weights.keys, x * TILE * cell, TILE * cell);
  if (!rows.length || !columns.length) throw new Failure("there is no such tile", "question");
  const shape = [Math.ceil(rows.length / cell), Math.ceil(columns.length / cell)] as const;
  const values = new Float32Array(shape[0] * shape[1]);
  const counts = new Float32Array(values.length);
  const mean = asked.get("how") === "mean";
  for (let row = rows.start; row < rows.stop; row++) {
    const own = weights.values.subarray(row * weights.keys, (row + 1) * weights.keys);
    const by = asked.get("scaled") === "1" ? largest(own) || 1 : 1;
    const down = Math.floor((row - rows.start) / cell) * shape[1];
    for (let key = columns.start; key < columns.stop; key++) {
      const at = down + Math.floor((key - columns.start) / cell);
      const weight = (own[key] ?? 0) / by;
      values[at] = mean ? (values[at] ?? 0) + weight : Math.max(values[at] ?? 0, weight);
      counts[at] = (counts[at] ?? 0) + 1;
    }
  }
  if (mean) values.forEach((sum, at) => (values[at] = sum / (counts[at] ?? 1)));
  return { fields: { exact: true }, arrays: { values: { shape, type: "float32", values } } };
}

export function row(weights: Weights, query: number): Answer {
  const at = query * weights.keys;
  const own = weights.values.slice(at, at + weights.keys);
  const visible = weights.visible.subarray(at, at + weights.keys);
  const entropy = own.reduce((sum, w) => (w > 0 ? sum - w * Math.log(w) : sum), 0);
  return line(own, visible, { sum: total(own), entropy, visible: total(visible), sink: 0 });
}

export function column(weights: Weights, key: number): Answer {
  const own = new Float32Array(weights.queries);
  const visible = new Int32Array(weights.queries);
  for (let query = 0; query < weights.queries; query++) {
    own[query] = weights.values[query * weights.keys + key] ?? 0;
    visible[query] = weights.visible[query * weights.keys + key] ?? 0;
  }
  return line(own, visible, { received: total(own) });
}

export function weight(weights: Weights, query: number, key: number): Answer {
  const { arrays, fields } = row(weights, query);
  const rank = arrays.ranks?.values[key] ?? 0;
  return {
    fields: {
      weight: arrays.weights?.values[key] ?? 0,
      rank: rank || null,
      visible: (fields as { visible: number }).visible,
      score: null,
    },
    arrays: {},
  };
}

/** 1 for the largest, equal ones by position, 0 for what is hidden. */
export function ranks(weights: ArrayLike<number>, visible: ArrayLike<number>): Int32Array {
  const seen = Array.from(weights, (_, at) => at).filter((at) => visible[at]);
  seen.sort((a, b) => (weights[b] ?? 0) - (weights[a] ?? 0) || a - b);
  const found = new Int32Array(weights.length);
  seen.forEach((at, rank) => (found[at] = rank + 1));
  return found;
}

type Triple = [number, number, number];

function line(own: Float32Array, visible: Int32Array, fields: unknown): Answer {
  const shape = [own.length];
  return {
    fields,
    arrays: {
      weights: { shape, type: "float32", values: own },
      ranks: { shape, type: "int32", values: ranks(own, visible) },
    },
  };
}

function part(size: number, start: number, length: number) {
  const stop = Math.min(size, start + length);
  return { start, stop, length: Math.max(0, stop - start) };
}

function largest(values: Float32Array): number {
  return values.reduce((most, value) => Math.max(most, value), 0);
}

function total(values: ArrayLike<number>): number {
  let sum = 0;
  for (let at = 0; at < values.length; at++) sum += values[at] ?? 0;
  return sum;
}
