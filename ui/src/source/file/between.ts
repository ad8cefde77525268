/** What is asked of who reads whom, from matrices of shares (queries, keys). */
import type { Answer, Table } from "../source";

/** Where the rows and columns of a map stand in their texts, and how long these are. */
export interface Frame {
  readonly firstQuery: number;
  readonly firstKey: number;
  readonly queryTokens: number;
  readonly keyTokens: number;
  readonly causal: boolean;
}

export function reads(
  table: Table,
  frame: Frame,
  tokens: readonly number[],
  side: string,
  measure: string,
  note: string,
): Answer {
  const [queries = 0, keys = 0] = table.shape;
  const reading = side !== "read_by";
  const shares = new Float32Array(reading ? frame.keyTokens : frame.queryTokens);
  const start = reading ? frame.firstKey : frame.firstQuery;
  for (const token of tokens) {
    const at = token - (reading ? frame.firstQuery : frame.firstKey);
    for (let other = 0; other < (reading ? keys : queries); other++) {
      const value = table.values[reading ? at * keys + other : other * keys + at] ?? 0;
      const part = reading ? value / tokens.length : value;
      shares[start + other] = (shares[start + other] ?? 0) + part;
    }
  }
  return {
    fields: {
      measure,
      note,
      first: frame.causal ? frame.firstKey : null,
      hidden: hidden(frame, tokens, reading, shares.length),
      heads: [],
    },
    arrays: { shares: { shape: [shares.length], type: "float32", values: shares } },
  };
}

function hidden(
  { causal }: Frame,
  tokens: readonly number[],
  reading: boolean,
  size: number,
): [number, number][] {
  if (!causal) return [];
  const edge = reading ? Math.max(...tokens) + 1 : Math.min(...tokens);
  const range: [number, number] = reading ? [edge, size] : [0, edge];
  return range[0] < range[1] ? [range] : [];
}

const MOST_TOKENS = 24; // of a layer whose ways are looked at

/** Rollout from some tokens of the last layer down; layers from the first to the last. */
export function flow(
  layers: readonly Table[],
  tokens: readonly number[],
  residual: number,
  most: number,
): Pick<Answer, "arrays"> & { kept: number[] } {
  const size = layers[0]?.shape[1] ?? 0;
  let above = new Float64Array(size);
  for (const token of tokens) above[token] = (above[token] ?? 0) + 1 / tokens.length;
  const rows = [above];
  const each = Math.ceil(most / layers.length);
  const ways: [number, number, number, number][][] = [];
  const kept: number[] = [];
  for (let layer = layers.length - 1; layer >= 0; layer--) {
    const weights = layers[layer]?.values ?? [];
    const below = new Float64Array(size);
    const found: [number, number, number, number][] = [];
    const looked = new Set(
      Array.from(above.keys())
        .sort((a, b) => (above[b] ?? 0) - (above[a] ?? 0))
        .slice(0, MOST_TOKENS),
    );
    for (let from = 0; from < size; from++) {
      const mass = above[from] ?? 0;
      if (!mass) continue;
      for (let to = 0; to < size; to++) {
        const own = to === from ? residual : 0;
        const amount = mass * (own + (1 - residual) * (weights[from * size + to] ?? 0));
        if (!amount) continue;
        below[to] = (below[to] ?? 0) + amount;
        if (looked.has(from)) found.push([layer, from, to, amount]);
      }
    }
    found.sort((a, b) => b[3] - a[3]);
    const best = found.slice(0, each).sort((a, b) => a[1] - b[1] || a[2] - b[2]);
    const mass = above.reduce((sum, part) => sum + part, 0);
    kept.unshift(best.reduce((sum, way) => sum + way[3], 0) / (mass || 1));
    ways.unshift(best);
    rows.unshift(below);
    above = below;
  }
  const all = ways.flat();
  return {
    kept: most ? kept : [],
    arrays: {
      layers: {
        shape: [rows.length, size],
        type: "float32",
        values: Float32Array.from(rows.flatMap((row) => Array.from(row))),
      },
      edges: {
        shape: [all.length, 3],
        type: "int32",
        values: Int32Array.from(all.flatMap(([layer, from, to]) => [layer, from, to])),
      },
      amounts: {
        shape: [all.length],
        type: "float32",
        values: Float32Array.from(all, (way) => way[3]),
      },
    },
  };
}
