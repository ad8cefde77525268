/** What the Text view asks: the shares of one word, in a head, a layer or all layers. */
import { type Source, float32 } from "../../source/source";
import type { HeadPlace } from "../../state/heads";
import type { Ranges, Side } from "./shares";

export const SCOPES = ["all", "layer", "head"] as const;
export type Scope = (typeof SCOPES)[number];
export type Measure = "raw" | "norm";

export interface Asking extends HeadPlace {
  readonly recording: number;
  readonly batch: number;
  readonly tokens: readonly number[];
  readonly side: Side;
  readonly measure: Measure;
  readonly scope: Scope;
  /** The stack of the map, and the maps in it; `null` where a map is in none. */
  readonly stack: number | null;
  readonly maps: readonly number[];
}

export interface Reads {
  /** A share for each token. */
  readonly shares: Float32Array | Float64Array;
  /** What was answered: "raw" where the norms are unknown. */
  readonly measure: Measure;
  readonly note: string;
  readonly first: number | null;
  readonly hidden: Ranges;
  readonly heads: readonly (HeadPlace & { readonly weight: number })[];
}

type Fields = Omit<Reads, "shares">;

export async function askReads(
  source: Source,
  asking: Asking,
  signal: AbortSignal,
  progress: (done: number, partial: Reads | null) => void = () => {},
): Promise<Reads> {
  const { scope, map, head, stack } = asking;
  // Who reads a word through the norms costs a pass over each layer: something is shown early.
  if (scope === "all" && asking.side === "read_by" && asking.measure === "norm") {
    return layerByLayer(source, asking, signal, progress);
  }
  if (scope === "all") return one(source, asking, { stack: stack ?? 0 }, signal);
  return one(source, asking, scope === "layer" ? { map } : { map, head }, signal);
}

async function one(
  source: Source,
  { recording, batch, tokens, side, measure }: Asking,
  where: Record<string, number>,
  signal: AbortSignal,
): Promise<Reads> {
  const asked = { recording, batch, tokens: tokens.join(","), side, measure, ...where };
  const answer = await source.ask("reads", asked, signal);
  const found = answer.fields as Partial<Fields>;
  return {
    shares: float32(answer, "shares").values,
    measure: found.measure ?? measure,
    note: found.note ?? "",
    first: found.first ?? null,
    hidden: found.hidden ?? [],
    heads: found.heads ?? [],
  };
}

/** The mean over the layers, one after the other; shown as it grows. */
async function layerByLayer(
  source: Source,
  asking: Asking,
  signal: AbortSignal,
  progress: (done: number, partial: Reads | null) => void,
): Promise<Reads> {
  let sum = new Float64Array();
  let found: Reads | null = null;
  for (const [place, map] of asking.maps.entries()) {
    const next = await one(source, asking, { map }, signal);
    if (place === 0) sum = new Float64Array(next.shares.length);
    next.shares.forEach((share, token) => (sum[token] = (sum[token] ?? 0) + share));
    found = { ...next, shares: sum.map((share) => share / (place + 1)) };
    progress(place + 1, found);
  }
  if (!found) throw new Error("a stack without layers");
  return found;
}
