import { expect, test } from "vitest";

import { choiceOf, keep } from "../../src/state/kept";
import { isMarked, markHeads, markedHeads } from "../../src/state/marked";
import { Selection } from "../../src/state/selection.svelte";

test("marked heads are kept in the address, in order and once", () => {
  const selection = new Selection();
  markHeads(selection, [{ map: 12, head: 3 }, { map: 0, head: 1 }, { map: 12, head: 3 }]);
  expect(selection.extra.marked).toBe("0.1,12.3");
  expect(markedHeads(selection)).toEqual([{ map: 0, head: 1 }, { map: 12, head: 3 }]);
  expect(isMarked(markedHeads(selection), { map: 12, head: 3 })).toBe(true);
  const other = new Selection();
  other.read(selection.write());
  expect(markedHeads(other)).toEqual(markedHeads(selection));
  markHeads(selection, []);
  expect(selection.write()).toBe("");
});

test("what is usual is left out of the address; what is unknown counts as usual", () => {
  const selection = new Selection();
  keep(selection, "text.side", "read_by", "reads");
  expect(choiceOf(selection, "text.side", ["reads", "read_by"])).toBe("read_by");
  keep(selection, "text.side", "reads", "reads");
  expect(selection.write()).toBe("");
  keep(selection, "text.side", "sideways", "reads");
  expect(choiceOf(selection, "text.side", ["reads", "read_by"])).toBe("reads");
});
