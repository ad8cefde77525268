import {
  type Answer,
  Failure,
  type Parameters,
  type Source,
  type Table,
  canonical,
} from "./source";
import { Weights } from "./weights";

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
  shares: { measure: "raw" },
  segments: { measure: "raw" },
};

/** How a question is called in a file: without what is as it would be anyway. */
export function key(name: string, parameters: Parameters): string {
  const usual = { ...DEFAULTS[""], ...DEFAULTS[name] };
  const said = Object.entries(parameters).filter(([at, value]) => usual[at] !== String(value));
  const query = canonical(Object.fromEntries(said));
  return `${name}${query && "?"}${query}`;
}

/** What the file holds: see "The file" in QUESTIONS.md. */
export interface Embedded {
  readonly answers: Readonly<Record<string, Packed>>;
  /** Base64 of a deflate-raw stream. */
  readonly packed: string;
}

interface Packed {
  readonly fields: unknown;
  readonly arrays: readonly PackedTable[];
}

interface PackedTable {
  readonly name: string;
  readonly shape: readonly number[];
  readonly type: "float32" | "int32" | "float16" | "decimal";
  /** In bytes, into the inflated stream. */
  readonly offset: number;
  /** Of a decimal: value = number / 10^digits. */
  readonly digits?: number;
}

/**
 * Answers from the file itself: those it holds, and those that follow from what it holds, the
 * weights of a head and the shares of a whole stack.
 */
export class EmbeddedSource implements Source {
  private readonly bytes: Promise<ArrayBuffer>;
  private readonly made = new Map<string, Answer>();

  constructor(private readonly file: Embedded) {
    this.bytes = inflated(file.packed);
  }

  async ask(name: string, parameters: Parameters = {}, signal?: AbortSignal): Promise<Answer> {
    const bytes = await this.bytes;
    signal?.throwIfAborted();
    const found = this.find(name, parameters, bytes) ?? this.follow(name, parameters, bytes);
    if (!found) throw new Failure("This file does not hold that.", "left_out");
    return found;
  }

  private find(name: string, parameters: Parameters, bytes: ArrayBuffer): Answer | undefined {
    const asked = key(name, parameters);
    const here = this.file.answers[asked];
    if (!here) return undefined;
    let answer = this.made.get(asked);
    if (!answer) {
      const arrays = here.arrays.map((one) => [one.name, unpacked(one, bytes)] as const);
      answer = { fields: here.fields, arrays: Object.fromEntries(arrays) };
      this.made.set(asked, answer);
    }
    return answer;
  }

  private follow(name: string, parameters: Parameters, bytes: ArrayBuffer): Answer | undefined {
    const { map, head, recording = 0, batch = 0, stack = 0, measure = "raw" } = parameters;
    const where = { recording, batch };
    const ofHead = map !== undefined && head !== undefined;
    const asked: readonly [string, Parameters] = ofHead
      ? ["weights", { ...where, map, head }]
      : ["shares", { ...where, stack, measure }];
    if (ofHead ? measure !== "raw" : name !== "reads" || map !== undefined) return undefined;
    const held = this.find(asked[0], asked[1], bytes);
    const values = held?.arrays.values;
    if (!(values?.values instanceof Float32Array)) return undefined;
    const digits = this.file.answers[key(asked[0], asked[1])]?.arrays[0]?.digits ?? 7;
    const about = this.file.answers.about?.fields as
      | { recordings: { maps: { causal: boolean; first_query: number }[]; stacks: { causal: boolean }[] }[] }
      | undefined;
    const recorded = about?.recordings[Number(recording)];
    const place = ofHead ? recorded?.maps[Number(map)] : recorded?.stacks[Number(stack)];
    const weights = new Weights(values as Table<Float32Array>, {
      digits,
      causal: place?.causal ?? false,
      firstQuery: ofHead ? (recorded?.maps[Number(map)]?.first_query ?? 0) : 0,
      note: ofHead ? "" : ((held?.fields as { note?: string } | undefined)?.note ?? ""),
      measure: String(measure),
    });
    return weights.answer(name, parameters);
  }
}

function unpacked(table: PackedTable, bytes: ArrayBuffer): Table {
  const { shape, offset } = table;
  const size = shape.reduce((product, side) => product * side, 1);
  switch (table.type) {
    case "int32":
      return { shape, type: "int32", values: new Int32Array(bytes.slice(offset, offset + 4 * size)) };
    case "float32":
      return {
        shape,
        type: "float32",
        values: new Float32Array(bytes.slice(offset, offset + 4 * size)),
      };
    case "decimal": {
      const scale = 10 ** (table.digits ?? 4);
      const numbers = new Uint16Array(bytes.slice(offset, offset + 2 * size));
      return { shape, type: "float32", values: Float32Array.from(numbers, (one) => one / scale) };
    }
    case "float16": {
      const numbers = new Uint16Array(bytes.slice(offset, offset + 2 * size));
      return { shape, type: "float32", values: Float32Array.from(numbers, widened) };
    }
  }
}

/** An IEEE half as a number. */
export function widened(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

async function inflated(text: string): Promise<ArrayBuffer> {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).arrayBuffer();
}
