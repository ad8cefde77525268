import { describe, expect, it } from "vitest";

import type { Recorded } from "../../../src/state/about";
import { headsInOrder, inLines, walk } from "../../../src/views/grid/lines";

const recorded = { maps: [{ heads: 3 }, { heads: 2 }] } as unknown as Recorded;
const names = (heads: readonly { map: number; head: number }[]) =>
  heads.map(({ map, head }) => `${map}.${head}`).join(" ");
const known = ({ map, head }: { map: number; head: number }) =>
  (({ "0.0": 2, "0.1": 5, "1.0": 7, "1.1": 2 }) as Record<string, number>)[`${map}.${head}`] ?? null;

describe("heads", () => {
  it("by layer, or by a number, unknown ones last", () => {
    expect(names(headsInOrder(recorded, "layer", known))).toBe("0.0 0.1 0.2 1.0 1.1");
    expect(names(headsInOrder(recorded, "high", known))).toBe("1.0 0.1 0.0 1.1 0.2");
    expect(names(headsInOrder(recorded, "low", known))).toBe("0.0 1.1 0.1 1.0 0.2");
  });

  it("in lines that a layer begins", () => {
    const heads = headsInOrder(recorded, "layer", known);
    const lines = inLines(heads, true, 2);
    expect(lines.map((line) => names(line.heads))).toEqual(["0.0 0.1", "0.2", "1.0 1.1"]);
    expect(lines.map((line) => line.first)).toEqual([true, false, true]);
    expect(inLines(heads, false, 4).map((line) => names(line.heads))).toEqual([
      "0.0 0.1 0.2 1.0",
      "1.1",
    ]);
  });

  it("are walked with the arrows", () => {
    const lines = inLines(headsInOrder(recorded, "layer", known), true, 2);
    expect(walk(lines, { map: 0, head: 1 }, "ArrowRight")).toEqual({ map: 0, head: 2 });
    expect(walk(lines, { map: 0, head: 1 }, "ArrowDown")).toEqual({ map: 0, head: 2 });
    expect(walk(lines, { map: 0, head: 2 }, "ArrowDown")).toEqual({ map: 1, head: 0 });
    expect(walk(lines, { map: 1, head: 1 }, "Home")).toEqual({ map: 0, head: 0 });
    expect(walk(lines, { map: 0, head: 0 }, "ArrowLeft")).toBeUndefined();
  });
});
