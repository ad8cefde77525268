import { describe, expect, it, vi } from "vitest";

import type { Answer, Parameters, Source } from "../../../src/source/source";
import { Tiles } from "../../../src/views/map/tiles";

/** Answers when it is told to. */
class Slow implements Source {
  readonly asked: { parameters: Parameters; signal: AbortSignal; give: (answer: Answer) => void }[] =
    [];

  ask(_: string, parameters: Parameters = {}, signal?: AbortSignal): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (!signal) throw new Error("tiles are always taken back by a signal");
      signal.addEventListener("abort", () => reject(signal.reason));
      this.asked.push({ parameters, signal, give: resolve });
    });
  }
}

function answer(exact: boolean): Answer {
  const values = new Float32Array(4).fill(exact ? 1 : 0.5);
  return { fields: { exact }, arrays: { values: { shape: [2, 2], type: "float32", values } } };
}

function tiles(source: Source, failed = vi.fn()): Tiles {
  return new Tiles(source, { map: 3, head: 1 }, 256, 10, vi.fn(), failed);
}

const at = (x: number, level = 0) => ({ level, x, y: 0 });
const settle = () => new Promise((resolve) => setTimeout(resolve));

describe("tiles", () => {
  it("are asked for a few at a time, the first first", async () => {
    const source = new Slow();
    const all = Array.from({ length: 9 }, (_, x) => at(x));
    tiles(source).want(all);
    expect(source.asked.map(({ parameters }) => parameters.x)).toEqual([0, 1, 2, 3]);
    source.asked[0]?.give(answer(true));
    await settle();
    expect(source.asked.at(-1)?.parameters).toMatchObject({ map: 3, head: 1, level: 0, x: 4 });
  });

  it("are given up when they leave the window, and kept when they have come", async () => {
    const source = new Slow();
    const found = tiles(source);
    found.want([at(0), at(1)]);
    source.asked[0]?.give(answer(true));
    await settle();
    found.want([at(5)]);
    expect(source.asked[1]?.signal.aborted).toBe(true);
    expect(found.get(at(0))?.values[0]).toBe(1);
    found.want([at(0)]);
    await settle();
    expect(source.asked).toHaveLength(3);
    expect(found.settled).toBe(true);
  });

  it("of coarse levels come as a draft first, then exact", async () => {
    const source = new Slow();
    const found = tiles(source);
    found.want([at(0, 9)]);
    expect(source.asked[0]?.parameters.draft).toBe(1);
    source.asked[0]?.give(answer(false));
    await settle();
    expect(found.get(at(0, 9))?.exact).toBe(false);
    expect(found.settled).toBe(false);
    expect(source.asked[1]?.parameters.draft).toBeUndefined();
    source.asked[1]?.give(answer(true));
    await settle();
    expect(found.settled).toBe(true);
  });

  it("that are refused are said once and not asked again", async () => {
    const failed = vi.fn();
    const found = tiles({ ask: () => Promise.reject(new Error("no")) }, failed);
    found.want([at(0)]);
    await settle();
    found.want([at(0)]);
    await settle();
    expect(failed).toHaveBeenCalledTimes(1);
    expect(found.settled).toBe(true);
  });
});
