import { describe, expect, it } from "vitest";

import type { About, MapAbout } from "../../src/state/about";
import { Page } from "../../src/state/page.svelte";

const map = (heads: number, queries: number): MapAbout =>
  ({ heads, batch: 1, queries, keys: queries }) as unknown as MapAbout;

function page(...recordings: MapAbout[][]): Page {
  const about = { recordings: recordings.map((maps) => ({ maps })) } as unknown as About;
  return new Page({ ask: () => Promise.reject(new Error("nothing is asked")) }, about);
}

describe("an address of another recording", () => {
  it("shows the nearest that there is", () => {
    const own = page([map(9, 21), map(3, 21)]);
    own.selection.read("recording=1&map=99&head=77&batch=5&query=9999&key=20");
    own.settle();
    const { recording, map: number, head, batch, query, key } = own.selection;
    expect([recording, number, head, batch, query, key]).toEqual([0, 1, 2, 0, null, 20]);
  });

  it("leaves alone what is there", () => {
    const own = page([map(9, 21)], [map(9, 30), map(9, 30)]);
    own.selection.read("view=map&recording=1&map=1&head=8&query=29&key=0");
    const before = own.selection.write();
    own.settle();
    expect(own.selection.write()).toBe(before);
  });
});
