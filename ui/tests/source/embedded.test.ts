import { beforeAll, describe, expect, it } from "vitest";

import { EmbeddedSource, key } from "../../src/source/embedded";
import { type Answer, Failure, type Parameters } from "../../src/source/source";

const TOKENS = 5;
const WIDTH = 2;
const SCALE = 0.5;

/** A head of five tokens: rows of a causal map. */
const Q = Array.from({ length: TOKENS * WIDTH }, (_, at) => Math.sin(3 * at));
const K = Array.from({ length: TOKENS * WIDTH }, (_, at) => 2 * Math.cos(2 * at));
const V = Array.from({ length: TOKENS * WIDTH }, (_, at) => at / 3);
const SCORES = rows((i, j) => SCALE * (Q[2 * i]! * K[2 * j]! + Q[2 * i + 1]! * K[2 * j + 1]!));
const WEIGHTS = SCORES.map((row, i) => {
  const seen = row.map((score, j) => (j <= i ? Math.exp(score) : 0));
  const total = seen.reduce((sum, one) => sum + one, 0);
  return seen.map((one) => one / total);
});
/** What the file's four digits say of them. */
const ROUNDED = WEIGHTS.map((row) => row.map((weight) => Math.round(weight * 10_000) / 10_000));

let source: EmbeddedSource;

beforeAll(async () => {
  const causal = rows((i, j) => Number(j <= i)).flat();
  const units = ROUNDED.flat().map((weight) => Math.round(weight * 10_000));
  const square = [TOKENS, TOKENS];
  const map = {
    name: "layers.0", batch: 1, heads: 1, queries: TOKENS, keys: TOKENS, head_numbers: [0],
    kind: "self", causal: true, query_text: 0, key_text: 0, first_query: 0, first_key: 0,
    stack: 0, levels: 1, finest: 0, held: null, scale: SCALE, softcap: null, has_bias: false,
    has_sinks: false, has_values: true, has_norms: false, norms_note: "", width: WIDTH,
    value_width: WIDTH,
  }; // prettier-ignore
  const about = {
    recordings: [
      {
        texts: [{ tokens: TOKENS, words: TOKENS, batch: 1, labels: "text" }],
        maps: [map, map],
        stacks: [{ name: "layers", maps: [0, 1], text: 0, has_norms: false, norms_note: "" }],
      },
    ],
  };
  const text = await packed({
    about: { fields: about, arrays: [] },
    "grid?map=0": {
      fields: { cell: 1 },
      arrays: [["values", [4], "float16", new Uint16Array([0x3c00, 0xc000, 0x0001, 0x3555])]],
    },
    "weights?head=0&map=0": {
      fields: {},
      arrays: [
        ["values", square, "decimal", new Uint16Array(units)],
        ["visible", square, "uint8", new Uint8Array(causal)],
      ],
    },
    "layer?map=0&measure=raw": { fields: {}, arrays: [["values", square, "decimal", new Uint16Array(units)]] },
    "layer?map=1&measure=raw": { fields: {}, arrays: [["values", square, "decimal", new Uint16Array(units)]] },
    "shares?measure=raw": { fields: {}, arrays: [["values", square, "decimal", new Uint16Array(units)]] },
    "vectors?map=0": {
      fields: {},
      arrays: [
        ["q", [1, TOKENS, WIDTH], "float32", new Float32Array(Q)],
        ["k", [1, TOKENS, WIDTH], "float32", new Float32Array(K)],
        ["v", [1, TOKENS, WIDTH], "float32", new Float32Array(V)],
        ["visible", square, "uint8", new Uint8Array(causal)],
      ],
    },
  });
  source = await EmbeddedSource.open(text);
});

describe("a page's own file", () => {
  it("calls questions by what is not as it would be anyway", () => {
    expect(key("tile", { map: 3, how: "max", y: 0, batch: 0 })).toBe("tile?map=3&y=0");
    expect(key("labels", { text: 0 })).toBe("labels");
    expect(key("passages", { how: "a b&c" })).toBe("passages?how=a%20b%26c");
  });

  it("gives what lies in it, half precision widened", async () => {
    const { fields, arrays } = await ask("grid", { map: 0 });
    expect(fields).toEqual({ cell: 1 });
    expect([...arrays.values!.values]).toEqual([1, -2, 2 ** -24, 0.333251953125]);
  });

  it("makes tiles, rows, columns and weights from the weights of a head", async () => {
    const whole = await ask("tile", { map: 0, head: 0, level: 0, x: 0, y: 0 });
    expectClose(whole.arrays.values!.values, ROUNDED.flat());
    const half = { map: 0, head: 0, level: 1, x: 0, y: 0 };
    const largest = await ask("tile", half);
    expect(largest.arrays.values!.shape).toEqual([3, 3]);
    const cell = [ROUNDED[2]![0]!, ROUNDED[2]![1]!, ROUNDED[3]![0]!, ROUNDED[3]![1]!];
    expect(largest.arrays.values!.values[3]).toBeCloseTo(Math.max(...cell), 6);
    const mean = await ask("tile", { ...half, how: "mean" });
    expect(mean.arrays.values!.values[3]).toBeCloseTo(cell.reduce((a, b) => a + b) / 4, 6);
    expect(mean.arrays.values!.values[8]).toBeCloseTo(ROUNDED[4]![4]!, 6); // the edge
    const scaled = await ask("tile", { ...half, level: 0, scaled: 1 });
    expect(Math.max(...scaled.arrays.values!.values.slice(10, 15))).toBe(1);

    const row = await ask("row", { map: 0, head: 0, query: 3 });
    expectClose(row.arrays.weights!.values, ROUNDED[3]!);
    expect([...row.arrays.ranks!.values].slice(0, 4).sort()).toEqual([1, 2, 3, 4]);
    expect(row.arrays.ranks!.values[4]).toBe(0);
    const column = await ask("column", { map: 0, head: 0, key: 2 });
    expectClose(column.arrays.weights!.values, ROUNDED.map((one) => one[2]!));
    expect([...column.arrays.ranks!.values].slice(0, 2)).toEqual([0, 0]);
    const weight = await ask("weight", { map: 0, head: 0, query: 3, key: 1 });
    expect(weight.fields).toMatchObject({
      weight: expect.closeTo(ROUNDED[3]![1]!, 6),
      rank: row.arrays.ranks!.values[1],
      visible: 4,
    });
  });

  it.each([{}, { map: 1 }, { map: 0, head: 0 }])("says who reads whom: %o", async (where) => {
    const reads = await ask("reads", { tokens: "2,3", ...where });
    expectClose(reads.arrays.shares!.values, columns((j) => (ROUNDED[2]![j]! + ROUNDED[3]![j]!) / 2));
    expect(reads.fields).toMatchObject({ first: 0, hidden: [[4, 5]], measure: "raw" });
    const measure = "head" in where ? "raw" : "norm"; // norms are not known here
    const by = await ask("reads", { tokens: "2,3", side: "read_by", measure, ...where });
    expectClose(by.arrays.shares!.values, columns((i) => ROUNDED[i]![2]! + ROUNDED[i]![3]!));
    expect(by.fields).toMatchObject({ hidden: [[0, 2]], measure: "raw" });
  });

  it("follows the way through the layers", async () => {
    const { fields, arrays } = await ask("flow", { tokens: "4", residual: 0.4, edges: 50 });
    const through = (above: number[]) =>
      columns((j) => 0.4 * above[j]! + 0.6 * above.reduce((sum, mass, i) => sum + mass * ROUNDED[i]![j]!, 0));
    const top = [0, 0, 0, 0, 1];
    const expected = [through(through(top)), through(top), top];
    expect(arrays.layers!.shape).toEqual([3, TOKENS]);
    expectClose(arrays.layers!.values, expected.flat());
    const edges = arrays.edges!.values;
    arrays.amounts!.values.forEach((amount, at) => {
      const [layer, from, to] = [edges[3 * at]!, edges[3 * at + 1]!, edges[3 * at + 2]!];
      const part = 0.6 * ROUNDED[from]![to]! + (from === to ? 0.4 : 0);
      expect(amount).toBeCloseTo(expected[layer + 1]![from]! * part, 6);
    });
    expect(fields).toMatchObject({ maps: [0, 1], kept: [expect.closeTo(1, 3), expect.closeTo(1, 3)] });
  });

  it("calculates a row step by step", async () => {
    const { fields, arrays } = await ask("steps", { map: 0, head: 0, query: 2, count: 2, keys: "0" });
    const found = fields as { keys: number[]; weight: number[]; score: unknown[]; rank: unknown[] };
    expect(found.keys).toContain(0);
    expect(found.keys).toContain(2); // its own
    expect(found.keys.at(-1)).toBe(3); // the first that it cannot see
    expect(found.score.at(-1)).toBeNull();
    expect(found.rank.at(-1)).toBeNull();
    expectClose(found.weight, found.keys.map((j) => WEIGHTS[2]![j]!));
    const output = [0, 1].map((at) => WEIGHTS[2]!.reduce((sum, w, j) => sum + w * V[2 * j + at]!, 0));
    expectClose(arrays.output!.values, output);
    expectClose(arrays.q!.values, Q.slice(4, 6));
  });

  it.each<[string, Parameters]>([
    ["tile", { map: 1, head: 0, level: 0, x: 0, y: 0 }],
    ["steps", { map: 1, head: 0, query: 1 }],
    ["reads", { map: 1, head: 0, tokens: "1" }],
    ["reads", { tokens: "1", batch: 1 }],
    ["heads", { map: 0 }],
    ["constructor", {}],
  ])("says what it does not hold: %s %o", async (name, parameters) => {
    await expect(ask(name, parameters)).rejects.toMatchObject({ code: "left_out" });
  });

  it("says what cannot be, and stops when it is told to", async () => {
    const wrong = ask("row", { map: 0, head: 0, query: 99 });
    await expect(wrong).rejects.toBeInstanceOf(Failure);
    await expect(ask("tile", { map: 0, head: 0, level: 0, x: 1, y: 0 })).rejects.toThrow("no such");
    const stop = AbortSignal.abort();
    await expect(source.ask("about", {}, stop)).rejects.toMatchObject({ name: "AbortError" });
  });
});

function ask(name: string, parameters: Parameters): Promise<Answer> {
  return source.ask(name, parameters);
}

function rows(of: (row: number, column: number) => number): number[][] {
  return columns((row) => row).map((row) => columns((column) => of(row, column)));
}

function columns(of: (column: number) => number): number[] {
  return Array.from({ length: TOKENS }, (_, column) => of(column));
}

function expectClose(found: ArrayLike<number>, wanted: readonly number[]) {
  expect(found.length).toBe(wanted.length);
  wanted.forEach((value, at) => expect(found[at]).toBeCloseTo(value, 5));
}

type Block = [string, number[], string, ArrayBufferView<ArrayBuffer>];

/** As Python packs a page's answers. */
async function packed(answers: Record<string, { fields: unknown; arrays: Block[] }>) {
  const blocks: Uint8Array[] = [];
  const entries: Record<string, unknown> = {};
  let offset = 0;
  for (const [name, { fields, arrays }] of Object.entries(answers)) {
    const headings = [];
    for (const [heading, shape, type, values] of arrays) {
      const block = await deflated(values);
      headings.push({ name: heading, shape, type, offset, length: block.length });
      blocks.push(block);
      offset += block.length;
    }
    entries[name] = { fields, arrays: headings };
  }
  const head = await deflated(new TextEncoder().encode(JSON.stringify({ answers: entries })));
  const length = new Uint8Array(new Uint32Array([head.length]).buffer);
  const all = Buffer.concat([length, head, ...blocks]);
  return all.toString("base64");
}

async function deflated(data: ArrayBufferView<ArrayBuffer>): Promise<Uint8Array> {
  const stream = new Blob([data]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
