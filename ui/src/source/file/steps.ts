/** The calculation of one row from q, k and v. */
import type { Answer, Table } from "../source";
import { ranks } from "./one_head";

export interface Vectors {
  readonly q: Table;
  readonly k: Table;
  readonly v: Table;
  readonly visible: Table;
}

export function steps(
  { q, k, v, visible }: Vectors,
  head: number,
  query: number,
  ownKey: number | null,
  count: number,
  further: readonly number[],
  scale: number,
  softcap: number | null,
): Answer {
  const [heads = 1, queries = 1, width = 0] = q.shape;
  const [keyHeads = 1, keys = 0] = k.shape;
  const valueWidth = v.shape[2] ?? 0;
  const group = Math.floor((head * keyHeads) / heads);
  const own = q.values.subarray((head * queries + query) * width).subarray(0, width);
  const keyOf = (key: number) =>
    k.values.subarray((group * keys + key) * width).subarray(0, width);
  const valueOf = (key: number) =>
    v.values.subarray((group * keys + key) * valueWidth).subarray(0, valueWidth);
  const seen = Int32Array.from(visible.values.subarray(query * keys, (query + 1) * keys));

  const all = Array.from({ length: keys }, (_, key) => key);
  const product = all.map((key) => dot(own, keyOf(key)));
  const scaled = product.map((value) => value * scale);
  const capped = softcap === null ? null : scaled.map((x) => softcap * Math.tanh(x / softcap));
  const score = (capped ?? scaled).map((value, key) => (seen[key] ? value : -Infinity));
  const maximum = score.reduce((most, value) => Math.max(most, value), -Infinity);
  const shift = Number.isFinite(maximum) ? maximum : 0;
  const exponential = score.map((value) => Math.exp(value - shift));
  const total = exponential.reduce((sum, value) => sum + value, 0);
  const weight = exponential.map((value) => value / (total || 1));
  const rank = ranks(weight, seen);

  const shown = new Set(further);
  all.filter((key) => (rank[key] ?? 0) >= 1 && (rank[key] ?? 0) <= count).forEach((key) =>
    shown.add(key),
  );
  if (ownKey !== null) {
    shown.add(ownKey);
    const next = all.find((key) => key >= ownKey && !seen[key]);
    if (next !== undefined) shown.add(next);
  }
  const chosen = [...shown].sort((a, b) => a - b);
  const of = <T>(values: ArrayLike<T>) => chosen.map((key) => values[key] as T);
  const summed = (some: readonly number[]) => {
    const sum = new Float64Array(valueWidth);
    for (const key of some) {
      valueOf(key).forEach((part, at) => (sum[at] = (sum[at] ?? 0) + part * (weight[key] ?? 0)));
    }
    return { shape: [valueWidth], type: "float32" as const, values: Float32Array.from(sum) };
  };
  const stacked = (rows: ArrayLike<number>[], length: number) => ({
    shape: [rows.length, length],
    type: "float32" as const,
    values: Float32Array.from(rows.flatMap((row) => Array.from(row))),
  });
  return {
    fields: {
      query,
      keys: chosen,
      visible_keys: seen.reduce((sum, one) => sum + one, 0),
      own_key: ownKey,
      width,
      scale,
      softcap,
      product: of(product),
      scaled: of(scaled),
      capped: capped && of(capped),
      bias: null,
      visible: of(seen).map(Boolean),
      score: of(score).map((value) => (Number.isFinite(value) ? value : null)),
      exponential: of(exponential),
      total,
      maximum: Number.isFinite(maximum) ? maximum : null,
      sink: null,
      sink_weight: 0,
      weight: of(weight),
      rank: of(rank).map((one) => one || null),
      shown_weight: of(weight).reduce((sum, one) => sum + one, 0),
      has_values: true,
      values_note: "",
    },
    arrays: {
      q: { shape: [width], type: "float32", values: Float32Array.from(own) },
      k: stacked(chosen.map(keyOf), width),
      v: stacked(chosen.map(valueOf), valueWidth),
      output: summed(all),
      partial: summed(chosen),
    },
  };
}

function dot(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let sum = 0;
  for (let at = 0; at < a.length; at++) sum += (a[at] ?? 0) * (b[at] ?? 0);
  return sum;
}
