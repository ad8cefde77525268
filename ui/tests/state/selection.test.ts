import { describe, expect, it } from "vitest";

import type { Recorded } from "../../src/state/about";
import { findHead, headAfter, headName } from "../../src/state/heads";
import { language } from "../../src/words";
import { Selection } from "../../src/state/selection.svelte";

describe("the address", () => {
  it("gives back what was written", () => {
    const one = new Selection();
    one.go({ view: "map", map: 12, head: 3, query: 0, key: 7, scale: "linear", normalised: true });
    one.extra = { "map.at": "1,2,3" };
    const other = new Selection();
    other.read(one.write());
    expect(other.write()).toBe(one.write());
    expect([other.view, other.query, other.extra["map.at"]]).toEqual(["map", 0, "1,2,3"]);
  });

  it("leaves out what is as it starts, and forgets what is gone", () => {
    const selection = new Selection();
    expect(selection.write()).toBe("");
    selection.go({ map: 3 });
    selection.read("");
    expect(selection.map).toBe(0);
  });

  it("takes nonsense as nothing", () => {
    const selection = new Selection();
    selection.read("view=../etc&map=-1&head=1e9&query=x&scale=cube&normalised=2");
    expect(selection.write()).toBe("");
  });

  it("tells steps from changes on the way", () => {
    const selection = new Selection();
    const before = selection.steps();
    selection.go({ query: 3, scale: "linear" });
    expect(selection.steps()).toBe(before);
    selection.go({ head: 1 });
    expect(selection.steps()).not.toBe(before);
  });
});

describe("heads by name", () => {
  const recorded = {
    maps: [
      { heads: 2, head_numbers: [3, 7] },
      { heads: 3, head_numbers: [0, 1, 2] },
    ],
  } as unknown as Recorded;

  it.each(["0.7", " 0 7 ", "L0H7", "0:7"])("%s is found", (name) => {
    expect(findHead(recorded, name)).toEqual({ map: 0, head: 1 });
  });

  it.each(["", "7", "0.1", "2.0", "a.b"])("%s is not", (name) => {
    expect(findHead(recorded, name)).toBeUndefined();
  });

  it("are called as the model numbers them", () => {
    expect(headName(recorded, { map: 0, head: 1 })).toBe("0.7");
  });

  it("follow one another through the layers, and round", () => {
    expect(headAfter(recorded, { map: 0, head: 1 }, 1)).toEqual({ map: 1, head: 0 });
    expect(headAfter(recorded, { map: 0, head: 0 }, -1)).toEqual({ map: 1, head: 2 });
    expect(headAfter(recorded, { map: 1, head: 2 }, 1)).toEqual({ map: 0, head: 0 });
  });
});

it("the language is the one asked for, else the browser's, else English", () => {
  expect(language("ko", ["en-US"])).toBe("ko");
  expect(language(null, ["fr", "ko-KR"])).toBe("ko");
  expect(language("xx", [])).toBe("en");
});
