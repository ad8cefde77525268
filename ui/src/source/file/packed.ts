import { type Answer, type Table } from "../source";

interface Heading {
  readonly name: string;
  readonly shape: readonly number[];
  readonly type: "float32" | "int32" | "float16" | "uint8" | "decimal";
  readonly offset: number;
  readonly length: number;
}

interface Entry {
  readonly fields: unknown;
  readonly arrays: readonly Heading[];
}

/** Answers as they lie in a file; an array is inflated when somebody asks for it. */
export class Packed {
  private readonly opened = new Map<string, Promise<Answer>>();

  private constructor(
    private readonly bytes: Uint8Array,
    private readonly start: number,
    private readonly entries: Readonly<Record<string, Entry>>,
  ) {}

  static async open(bytes: Uint8Array): Promise<Packed> {
    const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    const json = new TextDecoder().decode(await inflated(bytes.subarray(4, 4 + length)));
    const { answers } = JSON.parse(json) as { answers: Record<string, Entry> };
    return new Packed(bytes, 4 + length, answers);
  }

  /** The answer of a key, or `undefined`. */
  get(key: string): Promise<Answer> | undefined {
    if (!Object.hasOwn(this.entries, key)) return undefined;
    const known = this.opened.get(key);
    if (known) return known;
    const made = this.unpacked(this.entries[key] as Entry);
    this.opened.set(key, made);
    return made;
  }

  private async unpacked({ fields, arrays }: Entry): Promise<Answer> {
    const tables: Record<string, Table> = {};
    for (const heading of arrays) {
      const start = this.start + heading.offset;
      const bytes = await inflated(this.bytes.subarray(start, start + heading.length));
      tables[heading.name] = numbers(heading, bytes);
    }
    return { fields, arrays: tables };
  }
}

async function inflated(bytes: Uint8Array): Promise<ArrayBuffer> {
  const stream = new Blob([bytes as BlobPart]).stream();
  return new Response(stream.pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer();
}

function numbers({ shape, type }: Heading, bytes: ArrayBuffer): Table {
  switch (type) {
    case "float32":
      return { shape, type, values: new Float32Array(bytes) };
    case "int32":
      return { shape, type, values: new Int32Array(bytes) };
    case "uint8":
      return { shape, type: "int32", values: Int32Array.from(new Uint8Array(bytes)) };
    case "float16":
      return { shape, type: "float32", values: Float32Array.from(new Uint16Array(bytes), widened) };
    case "decimal":
      return {
        shape,
        type: "float32",
        values: Float32Array.from(new Uint16Array(bytes), (units) => units / 10000),
      };
  }
}

/** The number whose half-precision bits these are. */
function widened(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
