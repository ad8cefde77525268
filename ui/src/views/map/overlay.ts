/** What lies over the tiles: numbers in large cells, segments, ruler lines and the pinned cell. */
import { type Palette, type Range, inkOn, part } from "../../drawing/palette";
import { type Look, shortLabel } from "./axes";
import type { Tiles } from "./tiles";
import type { Extent, Size, Viewport } from "./viewport";

export interface Cell {
  readonly query: number;
  readonly key: number;
}

export interface Segment {
  readonly name: string;
  /** Token numbers of the text, `stop` not inside. */
  readonly first: number;
  readonly stop: number;
}

/** A weight in the room of one cell: ".12", ".003"; nothing where it would be all zeros. */
export function cellNumber(weight: number): string {
  if (weight >= 0.995) return "1.0";
  if (weight < 0.0005) return "";
  return weight.toFixed(weight < 0.0995 ? 3 : 2).slice(1);
}

const NUMBERS_FROM = 38; // pixels of a cell

/** The weights themselves, where a cell has room for a number. */
export function drawNumbers(
  context: CanvasRenderingContext2D,
  tiles: Tiles,
  tile: number,
  view: Viewport,
  map: Extent,
  size: Size,
  colour: { readonly palette: Palette; readonly dark: boolean; readonly range: Range },
  look: Look,
): void {
  if (Math.min(view.across, view.down) < NUMBERS_FROM) return;
  context.font = `11px ${look.sans}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  const lastQuery = Math.min(map.queries, view.top + size.height / view.down);
  const lastKey = Math.min(map.keys, view.left + size.width / view.across);
  for (let query = Math.floor(view.top); query < lastQuery; query++) {
    for (let key = Math.floor(view.left); key < lastKey; key++) {
      const weight = weightAt(tiles, tile, { query, key });
      if (!weight) continue;
      context.fillStyle = inkOn(colour.palette, colour.dark, part(colour.range, weight));
      const x = (key + 0.5 - view.left) * view.across;
      const y = (query + 0.5 - view.top) * view.down;
      context.fillText(cellNumber(weight), x, y);
    }
  }
}

/** One weight, if its tile of the finest level is here. */
export function weightAt(tiles: Tiles, tile: number, cell: Cell): number | undefined {
  const place = { level: 0, x: Math.floor(cell.key / tile), y: Math.floor(cell.query / tile) };
  const found = tiles.get(place);
  return found?.values[(cell.query - place.y * tile) * found.columns + cell.key - place.x * tile];
}

/**
 * Where the segments of the text begin, and the name of each on its own block; `start` are the
 * tokens at which the axes begin.
 */
export function drawSegments(
  context: CanvasRenderingContext2D,
  segments: readonly Segment[],
  start: Cell,
  view: Viewport,
  map: Extent,
  size: Size,
  look: Look,
): void {
  context.lineWidth = 1;
  context.font = `600 11.5px ${look.sans}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  const right = Math.min(size.width, (map.keys - view.left) * view.across);
  const bottom = Math.min(size.height, (map.queries - view.top) * view.down);
  for (const segment of segments) {
    const x = (segment.first - start.key - view.left) * view.across;
    const y = (segment.first - start.query - view.top) * view.down;
    context.strokeStyle = look.accent;
    context.globalAlpha = 0.55;
    context.beginPath();
    if (x >= 0 && x <= right) {
      context.moveTo(Math.round(x) + 0.5, 0);
      context.lineTo(Math.round(x) + 0.5, bottom);
    }
    if (y >= 0 && y <= bottom) {
      context.moveTo(0, Math.round(y) + 0.5);
      context.lineTo(right, Math.round(y) + 0.5);
    }
    context.stroke();
    context.globalAlpha = 1;
    const width = Math.min((segment.stop - segment.first) * view.across, 220);
    const height = (segment.stop - segment.first) * view.down;
    if (width < 34 || height < 20 || x + width < 0 || y + height < 0) continue;
    // A block that begins outside the window keeps its name in sight.
    const left = Math.max(x, 0) + 3;
    const top = Math.max(y, 0) + 3;
    if (left > right || top > bottom) continue;
    const said = shortLabel(context, segment.name, width - 14);
    context.fillStyle = look.accent;
    context.beginPath();
    context.roundRect(left, top, context.measureText(said).width + 10, 17, 4);
    context.fill();
    context.fillStyle = look.onAccent;
    context.fillText(said, left + 5, top + 9);
  }
}

/** Lines along the row and the column of a cell, and a frame around the cell itself. */
export function drawRulers(
  context: CanvasRenderingContext2D,
  cell: Cell,
  view: Viewport,
  map: Extent,
  size: Size,
  look: Look,
  strong: boolean,
): void {
  const x = (cell.key - view.left) * view.across;
  const y = (cell.query - view.top) * view.down;
  const right = Math.min(size.width, (map.keys - view.left) * view.across);
  const bottom = Math.min(size.height, (map.queries - view.top) * view.down);
  context.strokeStyle = strong ? look.accent : look.ink;
  context.lineWidth = 1;
  context.globalAlpha = strong ? 0.8 : 0.45;
  context.setLineDash(strong ? [] : [3, 3]);
  const large = Math.min(view.across, view.down) >= 10;
  // Lines run from the axes to the cell: they show which tokens meet there and hide little else.
  // Where numbers may stand in the cells, they run beside the row and the column.
  const beside = large ? [0, 1] : [0.5];
  context.beginPath();
  for (const at of beside) {
    const lineX = Math.round(x + view.across * at) + 0.5;
    const lineY = Math.round(y + view.down * at) + 0.5;
    if (lineY > 0 && lineY < bottom) {
      context.moveTo(0, lineY);
      context.lineTo(Math.min(large ? x : lineX, right), lineY);
    }
    if (lineX > 0 && lineX < right) {
      context.moveTo(lineX, 0);
      context.lineTo(lineX, Math.min(large ? y : lineY, bottom));
    }
  }
  context.stroke();
  context.setLineDash([]);
  context.globalAlpha = 1;
  if (large) {
    context.lineWidth = strong ? 2 : 1.5;
    context.strokeRect(Math.round(x), Math.round(y), view.across, view.down);
  } else {
    context.lineWidth = 1.5;
    context.beginPath();
    context.arc(x + view.across / 2, y + view.down / 2, 5, 0, 2 * Math.PI);
    context.stroke();
  }
}
