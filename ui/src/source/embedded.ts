import type { About, MapAbout, Recorded } from "../state/about";
import { type Frame, flow, reads } from "./file/between";
import { type Weights, column, row, tile, weight } from "./file/one_head";
import { Packed } from "./file/packed";
import { type Vectors, steps } from "./file/steps";
import {
  type Answer,
  Failure,
  type Parameters,
  type Source,
  type Table,
  canonical,
} from "./source";

/** Parameters that mean the same when they are left out. */
const DEFAULTS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  "": { recording: "0", batch: "0", stack: "0" },
  labels: { text: "0", start: "0", count: "8192" },
  aligned: { text: "0" },
  grid: { size: "32", how: "max" },
  tile: { how: "max", scaled: "0", draft: "0" },
  reads: { side: "reads", measure: "raw" },
  steps: { count: "6" },
  flow: { residual: "0.5", measure: "raw", edges: "240" },
  heads: { measures: "default" },
  segments: { measure: "raw" },
};

/** How a question is called in a file: without what is as it would be anyway. */
export function key(name: string, parameters: Parameters): string {
  const usual = { ...DEFAULTS[""], ...DEFAULTS[name] };
  const said = Object.entries(parameters).filter(([at, value]) => usual[at] !== String(value));
  const query = canonical(Object.fromEntries(said));
  return `${name}${query && "?"}${query}`;
}

/** Answers from the page's own file: those that lie in it, and what follows from them. */
export class EmbeddedSource implements Source {
  private constructor(
    private readonly packed: Packed,
    private readonly about: About,
  ) {}

  /** Reads base64 as it stands in the page. */
  static async open(text: string): Promise<EmbeddedSource> {
    const bytes = Uint8Array.from(atob(text.trim()), (sign) => sign.charCodeAt(0));
    const packed = await Packed.open(bytes);
    const about = await packed.get("about");
    if (!about) throw new Failure("This file is damaged.", "fault");
    return new EmbeddedSource(packed, about.fields as About);
  }

  async ask(name: string, parameters: Parameters = {}, signal?: AbortSignal): Promise<Answer> {
    signal?.throwIfAborted();
    const found = this.packed.get(key(name, parameters)) ?? this.derived(name, parameters);
    const answer = await found;
    signal?.throwIfAborted();
    if (!answer) {
      throw new Failure("This file does not hold the answer to that; jumok view does.", "left_out");
    }
    return answer;
  }

  private async derived(name: string, parameters: Parameters): Promise<Answer | undefined> {
    const asked = new URLSearchParams(canonical(parameters));
    if ((asked.get("batch") ?? "0") !== "0") return undefined;
    switch (name) {
      case "tile":
      case "row":
      case "column":
      case "weight":
        return this.ofHead(name, asked);
      case "reads":
        return this.reads(asked);
      case "flow":
        return this.flow(asked);
      case "steps":
        return this.steps(asked);
      default:
        return undefined;
    }
  }

  private recorded(asked: URLSearchParams): Recorded {
    const found = this.about.recordings[Number(asked.get("recording") ?? 0)];
    if (!found) throw new Failure("there is no such recording", "question");
    return found;
  }

  private map(asked: URLSearchParams): MapAbout {
    const found = this.recorded(asked).maps[Number(asked.get("map"))];
    if (!found) throw new Failure("there is no such map", "question");
    return found;
  }

  /** An answer that no view asks for, but from which others follow. */
  private held(name: string, asked: URLSearchParams, more: Parameters): Promise<Answer> | undefined {
    return this.packed.get(key(name, { recording: asked.get("recording") ?? "0", ...more }));
  }

  private async weights(asked: URLSearchParams): Promise<Weights | undefined> {
    const which = { map: asked.get("map") ?? "", head: asked.get("head") ?? "" };
    const held = await this.held("weights", asked, which);
    if (!held) return undefined;
    const { values, visible } = held.arrays;
    const [queries = 0, keys = 0] = values?.shape ?? [];
    return {
      queries,
      keys,
      values: values?.values as Float32Array,
      visible: visible?.values as Int32Array,
    };
  }

  private async ofHead(name: string, asked: URLSearchParams): Promise<Answer | undefined> {
    const weights = await this.weights(asked);
    if (!weights) return undefined;
    const query = Number(asked.get("query"));
    const at = Number(asked.get("key"));
    if (!(query < weights.queries) || !(at < weights.keys)) {
      throw new Failure("there is no such row or column", "question");
    }
    if (name === "tile") return tile(weights, asked);
    if (name === "row") return row(weights, query);
    return name === "column" ? column(weights, at) : weight(weights, query, at);
  }

  private frame(recorded: Recorded, map: MapAbout): Frame {
    const size = (text: number | null, otherwise: number) =>
      text === null ? otherwise : (recorded.texts[text]?.tokens ?? otherwise);
    return {
      firstQuery: map.first_query,
      firstKey: map.first_key,
      queryTokens: size(map.query_text, map.first_query + map.queries),
      keyTokens: size(map.key_text, map.first_key + map.keys),
      causal: map.causal,
    };
  }

  /** Matrices of shares of some maps, norm-weighted if that is known. */
  private async shares(
    name: "shares" | "layer",
    asked: URLSearchParams,
    more: Parameters,
    hasNorms: boolean,
  ): Promise<{ table: Table; measure: string } | undefined> {
    const measure = asked.get("measure") === "norm" && hasNorms ? "norm" : "raw";
    const held = await this.held(name, asked, { ...more, measure });
    const table = held?.arrays.values;
    return table && { table, measure };
  }

  private async reads(asked: URLSearchParams): Promise<Answer | undefined> {
    const recorded = this.recorded(asked);
    const tokens = (asked.get("tokens") ?? "").split(",").map(Number);
    const side = asked.get("side") ?? "reads";
    let map: MapAbout | undefined;
    let found: { table: Table; measure: string } | undefined;
    let note = "";
    if (asked.has("head")) {
      map = this.map(asked);
      const weights = asked.get("measure") === "norm" ? undefined : await this.weights(asked);
      const shape = weights && [weights.queries, weights.keys];
      found = weights && {
        table: { shape: shape ?? [], type: "float32", values: weights.values },
        measure: "raw",
      };
    } else if (asked.has("map")) {
      map = this.map(asked);
      found = await this.shares("layer", asked, { map: asked.get("map") ?? "" }, map.has_norms);
      note = map.norms_note;
    } else {
      const number = asked.get("stack") ?? "0";
      const stack = recorded.stacks[Number(number)];
      map = recorded.maps[stack?.maps[0] ?? -1];
      found = await this.shares("shares", asked, { stack: number }, stack?.has_norms ?? false);
      note = stack?.norms_note ?? "";
    }
    if (!map || !found) return undefined;
    const said = found.measure === "norm" ? note : "attention weights";
    return reads(found.table, this.frame(recorded, map), tokens, side, found.measure, said);
  }

  private async flow(asked: URLSearchParams): Promise<Answer | undefined> {
    const stack = this.recorded(asked).stacks[Number(asked.get("stack") ?? 0)];
    if (!stack) return undefined;
    const layers: Table[] = [];
    let measure = "raw";
    for (const map of stack.maps) {
      const found = await this.shares("layer", asked, { map: String(map) }, stack.has_norms);
      if (!found || found.table.shape[0] !== found.table.shape[1]) return undefined;
      layers.push(found.table);
      measure = found.measure;
    }
    const tokens = (asked.get("tokens") ?? "").split(",").map(Number);
    const residual = Number(asked.get("residual") ?? 0.5);
    const { arrays, kept } = flow(layers, tokens, residual, Number(asked.get("edges") ?? 240));
    const note = measure === "norm" ? stack.norms_note : "mean of the heads' weights";
    return { fields: { maps: stack.maps, measure, note, kept }, arrays };
  }

  private async steps(asked: URLSearchParams): Promise<Answer | undefined> {
    const held = await this.held("vectors", asked, { map: asked.get("map") ?? "" });
    if (!held) return undefined;
    const map = this.map(asked);
    const query = Number(asked.get("query"));
    const own = map.kind === "self" ? query + map.first_query - map.first_key : null;
    return steps(
      held.arrays as unknown as Vectors,
      Number(asked.get("head")),
      query,
      own,
      Number(asked.get("count") ?? 6),
      (asked.get("keys") ?? "").split(",").filter(Boolean).map(Number),
      map.scale,
      map.softcap,
    );
  }
}
