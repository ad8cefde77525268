/** Heads by name: "12.3" is head 3 of layer 12, both as the report and the model count them. */
import type { Recorded } from "./about";

export interface HeadPlace {
  readonly map: number;
  readonly head: number;
}

export function headName(recorded: Recorded, { map, head }: HeadPlace): string {
  return `${map}.${recorded.maps[map]?.head_numbers[head] ?? head}`;
}

/** The head that a name such as "12.3", "12 3" or "L12H3" means. */
export function findHead(recorded: Recorded, name: string): HeadPlace | undefined {
  const found = /^\D*(\d+)\D+(\d+)\D*$/.exec(name.trim());
  if (!found) return undefined;
  const map = Number(found[1]);
  const head = recorded.maps[map]?.head_numbers.indexOf(Number(found[2])) ?? -1;
  return head < 0 ? undefined : { map, head };
}

/** The head so many places on, through all layers, wrapping round at the end. */
export function headAfter(recorded: Recorded, from: HeadPlace, steps: number): HeadPlace {
  const counts = recorded.maps.map((map) => map.heads);
  const total = counts.reduce((sum, count) => sum + count, 0);
  const before = counts.slice(0, from.map).reduce((sum, count) => sum + count, 0);
  let head = (((before + from.head + steps) % total) + total) % total;
  let map = 0;
  while (head >= (counts[map] ?? Infinity)) head -= counts[map++] ?? 0;
  return { map, head };
}
