/** The heads in lines: a layer begins a new line, or all follow one another by their value. */
import type { Recorded } from "../../state/about";
import type { HeadPlace } from "../../state/heads";

export interface Line {
  /** The layer whose heads these are; `null` where heads of all layers are mixed. */
  readonly layer: number | null;
  /** Whether the layer's first line: it bears the name. */
  readonly first: boolean;
  readonly heads: readonly HeadPlace[];
}

export const ORDERS = ["layer", "high", "low"] as const;
export type Order = (typeof ORDERS)[number];

export function headsInOrder(
  recorded: Recorded,
  order: Order,
  value: (head: HeadPlace) => number | null,
): HeadPlace[] {
  const heads = recorded.maps.flatMap(({ heads: count }, map) =>
    Array.from({ length: count }, (_, head) => ({ map, head })),
  );
  if (order === "layer") return heads;
  const sign = order === "high" ? -1 : 1;
  // Unknown values stand at the end, whichever way.
  const key = (head: HeadPlace): number => {
    const known = value(head);
    return known === null ? Infinity : sign * known;
  };
  const keys = new Map(heads.map((head) => [head, key(head)]));
  return heads.sort((one, other) => {
    const [a, b] = [keys.get(one) ?? 0, keys.get(other) ?? 0];
    return a === b ? 0 : a - b;
  });
}

export function inLines(heads: readonly HeadPlace[], byLayer: boolean, most: number): Line[] {
  const lines: (Line & { heads: HeadPlace[] })[] = [];
  for (const head of heads) {
    const layer = byLayer ? head.map : null;
    const last = lines.at(-1);
    if (last && last.layer === layer && last.heads.length < most) last.heads.push(head);
    else lines.push({ layer, first: last?.layer !== layer, heads: [head] });
  }
  return lines;
}

/** The head that an arrow key leads to from here. */
export function walk(
  lines: readonly Line[],
  from: HeadPlace,
  key: string,
): HeadPlace | undefined {
  const row = lines.findIndex(({ heads }) => heads.some((head) => same(head, from)));
  if (row < 0) return lines[0]?.heads[0];
  const heads = lines[row]?.heads ?? [];
  const column = heads.findIndex((head) => same(head, from));
  const near = (line: number): HeadPlace | undefined => {
    const there = lines[Math.min(Math.max(line, 0), lines.length - 1)]?.heads ?? [];
    return there[Math.min(column, there.length - 1)];
  };
  switch (key) {
    case "ArrowRight":
      return heads[column + 1] ?? lines[row + 1]?.heads[0];
    case "ArrowLeft":
      return heads[column - 1] ?? lines[row - 1]?.heads.at(-1);
    case "ArrowDown":
      return near(row + 1);
    case "ArrowUp":
      return near(row - 1);
    case "PageDown":
      return near(row + 5);
    case "PageUp":
      return near(row - 5);
    case "Home":
      return lines[0]?.heads[0];
    case "End":
      return lines.at(-1)?.heads.at(-1);
    default:
      return undefined;
  }
}

export function same(one: HeadPlace, other: HeadPlace): boolean {
  return one.map === other.map && one.head === other.head;
}
