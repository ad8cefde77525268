/** Heads that the reader has marked, in one view for all: kept in the address as `marked=3.1,12.0`
 * (number of the map, and the head's place along its axis). */
import type { HeadPlace } from "./heads";
import type { Selection } from "./selection.svelte";

const NAME = "marked";

export function markedHeads(selection: Selection): HeadPlace[] {
  const text = selection.extra[NAME] ?? "";
  return [...text.matchAll(/(\d+)\.(\d+)/g)].map(([, map, head]) => ({
    map: Number(map),
    head: Number(head),
  }));
}

export function markHeads(selection: Selection, heads: readonly HeadPlace[]): void {
  const sorted = [...heads].sort((one, other) => one.map - other.map || one.head - other.head);
  const names = sorted.map(({ map, head }) => `${map}.${head}`);
  const { [NAME]: _, ...others } = selection.extra;
  const text = [...new Set(names)].join(",");
  selection.extra = text ? { ...others, [NAME]: text } : others;
}

export function isMarked(heads: readonly HeadPlace[], { map, head }: HeadPlace): boolean {
  return heads.some((one) => one.map === map && one.head === head);
}
