import { describe, expect, it } from "vitest";

import {
  LARGEST,
  centred,
  panned,
  showing,
  tilesInSight,
  whole,
  zoomed,
} from "../../../src/views/map/viewport";

const size = { width: 800, height: 600 };
const square = { keys: 2048, queries: 2048 };

describe("the whole map", () => {
  it("has square cells", () => {
    const view = whole(square, size);
    expect(view.across).toBe(view.down);
    expect(view.down * 2048).toBeCloseTo(600);
  });

  it("is never larger than its largest cell", () => {
    expect(whole({ keys: 3, queries: 3 }, size).across).toBe(LARGEST);
  });

  it("of one query over many keys is no hair line", () => {
    const view = whole({ keys: 8192, queries: 1 }, size);
    expect(view.down).toBe(LARGEST);
    expect(view.across * 8192).toBeCloseTo(800);
  });
});

describe("zooming", () => {
  it("keeps what is under the pointer", () => {
    const view = centred({ query: 1000, key: 500 }, 4, square, size);
    const at = { x: 123, y: 456 };
    const after = zoomed(view, 2, at, square, size);
    expect(after.left + at.x / after.across).toBeCloseTo(view.left + at.x / view.across);
    expect(after.top + at.y / after.down).toBeCloseTo(view.top + at.y / view.down);
    expect(after.across).toBe(8);
  });

  it("ends at the whole map and at single weights", () => {
    const view = whole(square, size);
    expect(zoomed(view, 1e-6, { x: 0, y: 0 }, square, size)).toEqual(view);
    expect(zoomed(view, 1e9, { x: 9, y: 9 }, square, size).across).toBe(LARGEST);
  });
});

it("panning stops at the edges", () => {
  const view = centred({ query: 10, key: 10 }, 10, square, size);
  expect(panned(view, 1e9, 1e9, square, size)).toMatchObject({ left: 0, top: 0 });
  const end = panned(view, -1e9, -1e9, square, size);
  expect(end.left).toBeCloseTo(2048 - 80);
  expect(end.top).toBeCloseTo(2048 - 60);
});

it("a cell is brought into sight, and one in sight moves nothing", () => {
  const view = centred({ query: 100, key: 100 }, 20, square, size);
  expect(showing(view, { query: 101, key: 102 }, square, size)).toEqual(view);
  const moved = showing(view, { query: 500, key: 100 }, square, size);
  expect(moved.left).toBe(view.left);
  expect(moved.top).toBeLessThan(500);
  expect(moved.top + size.height / moved.down).toBeGreaterThan(501);
});

describe("tiles in sight", () => {
  const grid = { tile: 256, levels: 10, ratio: 1 };
  const long = { keys: 131_072, queries: 131_072 };

  it("of the whole map are few and coarse", () => {
    const range = tilesInSight(whole(long, size), long, size, grid);
    expect(range.level).toBe(8);
    expect([range.left, range.right, range.top, range.bottom]).toEqual([0, 1, 0, 1]);
  });

  it("have dots of one to two pixels of the screen", () => {
    for (const scale of [0.01, 0.03, 0.4, 0.5, 0.9]) {
      for (const ratio of [1, 2, 3]) {
        const view = centred({ query: 60_000, key: 60_000 }, scale, long, size);
        const { level } = tilesInSight(view, long, size, { ...grid, ratio });
        const dot = view.across * ratio * 2 ** level;
        expect(dot).toBeGreaterThan(0.999);
        if (level > 0) expect(dot).toBeLessThan(2.001);
      }
    }
  });

  it("end where the map ends", () => {
    const map = { keys: 300, queries: 260 };
    const view = whole(map, size);
    expect(tilesInSight(view, map, size, { ...grid, levels: 2 })).toMatchObject({
      level: 0,
      right: 1,
      bottom: 1,
    });
  });

  it("are bounded where the axes have scales of their own", () => {
    const map = { keys: 131_072, queries: 4 };
    const { level, left, right, top, bottom } = tilesInSight(whole(map, size), map, size, grid);
    expect((right - left + 1) * (bottom - top + 1)).toBeLessThanOrEqual(160);
    expect(level).toBeLessThan(10);
  });
});
