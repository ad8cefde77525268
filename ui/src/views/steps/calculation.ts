/** The textbook's calculation for one query of one head: the answer to `steps`, row by row. */
import { type Answer, Failure } from "../../source/source";

export const STEPS = [
  "project",
  "product",
  "scale",
  "softcap",
  "bias",
  "mask",
  "softmax",
  "mix",
] as const;
export type Step = (typeof STEPS)[number];

type Numbers = readonly (number | null)[];

interface Fields {
  readonly query: number;
  readonly keys: readonly number[];
  readonly visible_keys: number;
  readonly own_key: number | null;
  readonly width: number;
  readonly scale: number;
  readonly softcap: number | null;
  readonly product: Numbers;
  readonly scaled: Numbers;
  readonly capped: Numbers | null;
  readonly bias: Numbers | null;
  readonly visible: readonly boolean[];
  readonly score: Numbers;
  readonly exponential: Numbers;
  readonly total: number | null;
  readonly maximum: number | null;
  readonly sink: number | null;
  readonly sink_weight: number;
  readonly weight: Numbers;
  readonly shown_weight: number;
  readonly has_values: boolean;
}

export interface KeyRow {
  readonly key: number;
  readonly k: Float32Array;
  readonly v: Float32Array | null;
  readonly product: number;
  readonly scaled: number;
  readonly capped: number | null;
  readonly bias: number | null;
  readonly visible: boolean;
  /** −∞ where it is hidden. */
  readonly score: number;
  readonly weight: number;
}

export interface Calculation {
  readonly query: number;
  readonly ownKey: number | null;
  readonly width: number;
  readonly scale: number;
  /** Whether the scale is the textbook's 1/√d. */
  readonly usualScale: boolean;
  readonly softcap: number | null;
  readonly steps: readonly Step[];
  readonly q: Float32Array;
  readonly rows: readonly KeyRow[];
  readonly visibleKeys: number;
  readonly otherKeys: number;
  readonly otherWeight: number;
  readonly sinkWeight: number | null;
  readonly total: number;
  readonly maximum: number;
  readonly output: Float32Array | null;
  readonly partial: Float32Array | null;
}

export function calculation(answer: Answer): Calculation {
  const fields = answer.fields as Fields;
  const q = vectors(answer, "q")[0];
  const k = vectors(answer, "k");
  const v = fields.has_values ? vectors(answer, "v") : [];
  if (!q) throw new Failure("no q came", "fault");
  const rows = fields.keys.map((key, at): KeyRow => ({
    key,
    k: k[at] ?? new Float32Array(),
    v: v[at] ?? null,
    product: fields.product[at] ?? NaN,
    scaled: fields.scaled[at] ?? NaN,
    capped: fields.capped?.[at] ?? null,
    bias: fields.bias?.[at] ?? null,
    visible: fields.visible[at] ?? false,
    score: fields.visible[at] ? (fields.score[at] ?? NaN) : -Infinity,
    weight: fields.weight[at] ?? 0,
  }));
  const shown = rows.filter((row) => row.visible).length;
  const steps = STEPS.filter(
    (step) =>
      !(step === "softcap" && !fields.capped) &&
      !(step === "bias" && !fields.bias) &&
      !(step === "mix" && !fields.has_values),
  );
  return {
    query: fields.query,
    ownKey: fields.own_key,
    width: fields.width,
    scale: fields.scale,
    usualScale: Math.abs(fields.scale * Math.sqrt(fields.width) - 1) < 1e-6,
    softcap: fields.softcap,
    steps,
    q,
    rows,
    visibleKeys: fields.visible_keys,
    otherKeys: fields.visible_keys - shown,
    otherWeight: Math.max(0, 1 - fields.shown_weight - fields.sink_weight),
    sinkWeight: fields.sink === null ? null : fields.sink_weight,
    total: fields.total ?? NaN,
    maximum: fields.maximum ?? NaN,
    output: fields.has_values ? (vectors(answer, "output")[0] ?? null) : null,
    partial: fields.has_values ? (vectors(answer, "partial")[0] ?? null) : null,
  };
}

/** The rows of an array (n, D), or the one vector (D) of a flat one. */
function vectors(answer: Answer, name: string): Float32Array[] {
  const table = answer.arrays[name];
  if (!table || !(table.values instanceof Float32Array)) return [];
  const width = table.shape.at(-1) ?? 0;
  const count = table.shape.length > 1 ? (table.shape[0] ?? 0) : 1;
  const values = table.values;
  return Array.from({ length: count }, (_, at) => values.subarray(at * width, (at + 1) * width));
}

/** The largest absolute value: what the deepest colour of strips that are compared stands for. */
export function reach(vectors: readonly (Float32Array | null)[]): number {
  let found = 0;
  for (const vector of vectors) {
    if (vector) for (const value of vector) found = Math.max(found, Math.abs(value));
  }
  return found;
}
