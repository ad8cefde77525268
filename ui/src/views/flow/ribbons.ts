/**
 * The flow through the layers as ribbons: words are rows, layers are columns, and a ribbon is as
 * thick as what passes from a word above a layer to a word below it.
 */
import type { Reading } from "../../state/reading";

export interface Edge {
  /** From word `from` above layer `layer` to word `to` below it. */
  readonly layer: number;
  readonly from: number;
  readonly to: number;
  readonly amount: number;
}

export interface WordFlow {
  /** How many layers, L. */
  readonly layers: number;
  /** What each word holds before each layer: L + 1 rows; row 0 is the input. */
  readonly rows: readonly Float64Array[];
  readonly edges: readonly Edge[];
}

/** Adds tokens up to words. */
export function byWords(
  reading: Reading,
  layers: Float32Array,
  tokens: number,
  edges: Int32Array,
  amounts: Float32Array,
): WordFlow {
  const count = Math.round(layers.length / tokens);
  const words = reading.words.length;
  const rows = Array.from({ length: count }, (_, row) => {
    const sums = new Float64Array(words);
    for (let token = 0; token < tokens; token++) {
      const word = reading.wordOf[token] ?? -1;
      if (word >= 0) sums[word] = (sums[word] ?? 0) + (layers[row * tokens + token] ?? 0);
    }
    return sums;
  });
  const sums = new Map<number, Edge>();
  for (let at = 0; at < amounts.length; at++) {
    const layer = edges[3 * at] ?? 0;
    const from = reading.wordOf[edges[3 * at + 1] ?? -1] ?? -1;
    const to = reading.wordOf[edges[3 * at + 2] ?? -1] ?? -1;
    if (from < 0 || to < 0) continue;
    const key = (layer * words + from) * words + to;
    const amount = (sums.get(key)?.amount ?? 0) + (amounts[at] ?? 0);
    sums.set(key, { layer, from, to, amount });
  }
  return { layers: count - 1, rows, edges: [...sums.values()] };
}

export interface Ribbon extends Edge {
  /** Where it leaves the upper word and enters the lower one: the middle of its ends. */
  readonly y1: number;
  readonly y0: number;
  readonly thickness: number;
}

/** Stacks the ribbons of a word in the order of the words that they lead to. */
export function ribbons(flow: WordFlow, y: (word: number) => number, scale: number): Ribbon[] {
  const found: Ribbon[] = [];
  for (let layer = 0; layer < flow.layers; layer++) {
    const here = flow.edges.filter((edge) => edge.layer === layer);
    const leave = stacked(here, "from", "to", flow.rows[layer + 1], y, scale);
    const enter = stacked(here, "to", "from", flow.rows[layer], y, scale);
    here.forEach((edge, at) => {
      found.push({
        ...edge,
        y1: leave[at] ?? 0,
        y0: enter[at] ?? 0,
        thickness: edge.amount * scale,
      });
    });
  }
  return found;
}

function stacked(
  edges: readonly Edge[],
  side: "from" | "to",
  other: "from" | "to",
  row: Float64Array | undefined,
  y: (word: number) => number,
  scale: number,
): number[] {
  const order = edges
    .map((_, at) => at)
    .sort((a, b) => (edges[a]?.[other] ?? 0) - (edges[b]?.[other] ?? 0));
  const used = new Map<number, number>();
  const found = new Array<number>(edges.length);
  const carried = new Map<number, number>();
  for (const edge of edges) {
    carried.set(edge[side], (carried.get(edge[side]) ?? 0) + edge.amount);
  }
  for (const at of order) {
    const edge = edges[at];
    if (!edge) continue;
    const word = edge[side];
    // What is not drawn leaves the same gap above and below.
    const whole = Math.max(carried.get(word) ?? 0, 0) || (row?.[word] ?? 0);
    const start = y(word) - (whole * scale) / 2 + (used.get(word) ?? 0);
    found[at] = start + (edge.amount * scale) / 2;
    used.set(word, (used.get(word) ?? 0) + edge.amount * scale);
  }
  return found;
}

/**
 * What part of each edge ends in an input word, by the edges that are known: 0 to 1, in the order
 * of `flow.edges`.
 */
export function leadingTo(flow: WordFlow, word: number): Float64Array {
  const found = new Float64Array(flow.edges.length);
  let ends = new Map<number, number>([[word, 1]]);
  for (let layer = 0; layer < flow.layers; layer++) {
    const next = new Map<number, number>();
    const carried = new Map<number, number>();
    flow.edges.forEach((edge, at) => {
      if (edge.layer !== layer) return;
      const part = ends.get(edge.to) ?? 0;
      found[at] = part;
      next.set(edge.from, (next.get(edge.from) ?? 0) + part * edge.amount);
      carried.set(edge.from, (carried.get(edge.from) ?? 0) + edge.amount);
    });
    ends = new Map([...next].map(([from, sum]) => [from, sum / (carried.get(from) || 1)]));
  }
  return found;
}

/** The flow from the top down to what stands before layer `lowest`, and nothing below it. */
export function above(flow: WordFlow, lowest: number): WordFlow {
  return {
    layers: flow.layers - lowest,
    rows: flow.rows.slice(lowest),
    edges: flow.edges
      .filter((edge) => edge.layer >= lowest)
      .map((edge) => ({ ...edge, layer: edge.layer - lowest })),
  };
}

/**
 * The lowest layer before which the words that `counts` still hold a quarter of the flow. Further
 * down it is mostly in the sink, into which rollout through many layers runs.
 */
export function lowestTelling(flow: WordFlow, counts: (word: number) => boolean): number {
  for (let layer = flow.layers - 1; layer >= 0; layer--) {
    let sum = 0;
    flow.rows[layer]?.forEach((value, word) => (sum += counts(word) ? value : 0));
    if (sum < 0.25) return Math.min(layer + 1, flow.layers - 1);
  }
  return 0;
}

/**
 * Places words one below the other in `room` pixels: those that have a label get at least `gap`
 * pixels, all others share what is left.
 */
export function placed(
  words: number,
  labelled: ReadonlySet<number>,
  room: number,
  gap: number,
): Float64Array {
  const others = words - labelled.size;
  const wide = others > 0 ? Math.min(gap, (0.82 * room) / Math.max(1, labelled.size)) : 0;
  const each = labelled.size > 0 && others === 0 ? room / words : wide;
  const left = others > 0 ? (room - each * labelled.size) / others : 0;
  const found = new Float64Array(words);
  let at = 0;
  for (let word = 0; word < words; word++) {
    const own = labelled.has(word) ? each : Math.min(left, gap);
    found[word] = at + own / 2;
    at += own;
  }
  // What nobody needs stays empty above and below, alike.
  const spare = Math.max(0, room - at) / 2;
  return found.map((y) => y + spare);
}

/** Moves labels apart so that none lies on another, and keeps them between `low` and `high`. */
export function spread(wanted: readonly number[], gap: number, low: number, high: number): number[] {
  const order = wanted.map((_, at) => at).sort((a, b) => (wanted[a] ?? 0) - (wanted[b] ?? 0));
  const found = [...wanted];
  let least = low;
  for (const at of order) {
    found[at] = Math.max(wanted[at] ?? 0, least);
    least = (found[at] ?? 0) + gap;
  }
  let most = high;
  for (const at of order.reverse()) {
    found[at] = Math.min(found[at] ?? 0, most);
    most = (found[at] ?? 0) - gap;
  }
  return found;
}

/** A name cut to the width of so many letters; one of Hangul, Kanji or an emoji takes two. */
export function fitted(text: string, most: number): string {
  const wide = (sign: string): number => ((sign.codePointAt(0) ?? 0) >= 0x1100 ? 2 : 1);
  const signs = [...text];
  const sum = (all: readonly string[]): number => all.reduce((width, sign) => width + wide(sign), 0);
  if (sum(signs) <= most) return text;
  while (signs.length > 1 && sum(signs) > most - 1) signs.pop();
  return `${signs.join("")}…`;
}
