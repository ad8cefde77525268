/** The two axes: token labels where there is room for every one, positions where there is not. */
import { pixel } from "./draw";
import type { Size, Viewport } from "./viewport";

export interface Look {
  readonly ink: string;
  readonly soft: string;
  readonly line: string;
  readonly paper: string;
  readonly sunken: string;
  readonly accent: string;
  readonly onAccent: string;
  readonly sans: string;
  readonly mono: string;
}

export interface Axis {
  readonly cells: number;
  /** The number of the first cell's token in its text. */
  readonly first: number;
  label(cell: number): string;
  /** What the axis is called, such as "queries ↓". */
  readonly title: string;
}

export interface Gutters {
  readonly left: number;
  readonly top: number;
}

const ROOM = 9; // pixels that a label needs; every token has one, or every other
const LETTERS = { least: 9, most: 12 }; // pixels
const LEAN = -Math.PI / 3;

/** 1, 2 or 5 times a power of ten: the smallest step that leaves so much room. */
export function niceStep(scale: number, room: number): number {
  const least = room / scale;
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  for (const times of [1, 2, 5, 10]) if (power * times >= least) return power * times;
  return power * 10;
}

/** Every how many cells a label stands; 0 where there is no room for any. */
export function labelStep(scale: number): number {
  if (scale >= ROOM) return 1;
  return scale >= ROOM / 2 ? 2 : 0;
}

export function shortLabel(context: CanvasRenderingContext2D, text: string, most: number): string {
  if (context.measureText(text).width <= most) return text;
  const signs = [...text];
  let length = Math.min(signs.length, Math.ceil(most / 4));
  while (length > 1 && context.measureText(`${signs.slice(0, length).join("")}…`).width > most) {
    length--;
  }
  return `${signs.slice(0, length).join("")}…`;
}

/** Draws both axes; the plot's corner is at (left, top), in pixels of the page. */
export function drawAxes(
  context: CanvasRenderingContext2D,
  view: Viewport,
  size: Size,
  gutters: Gutters,
  axes: { readonly queries: Axis; readonly keys: Axis },
  look: Look,
): void {
  const bottom = Math.min(size.height, (axes.queries.cells - view.top) * view.down);
  const right = Math.min(size.width, (axes.keys.cells - view.left) * view.across);
  context.textBaseline = "middle";

  context.save();
  context.beginPath();
  context.rect(0, gutters.top - 8, gutters.left, size.height + 9);
  context.clip();
  context.textAlign = "right";
  marks(axes.queries, view.top, view.down, size.height, 44, ({ cell, middle, labelled }) => {
    const y = gutters.top + middle;
    context.fillStyle = look.soft;
    context.fillRect(gutters.left - 4, y, 3, 1);
    const letters = labelled ? lettersIn(view.down * labelStep(view.down)) : 0;
    text(context, axes.queries, cell, letters, look, gutters.left - 8, y, gutters.left - 12);
  });
  context.restore();

  context.save();
  context.beginPath();
  context.rect(gutters.left - 24, 0, size.width + 25, gutters.top);
  context.clip();
  marks(axes.keys, view.left, view.across, size.width, 76, ({ cell, middle, labelled }) => {
    const x = gutters.left + middle;
    context.fillStyle = look.soft;
    context.fillRect(x, gutters.top - 4, 1, 3);
    if (!labelled) {
      context.textAlign = "center";
      text(context, axes.keys, cell, 0, look, x, gutters.top - 14, 70);
      return;
    }
    context.save();
    context.textAlign = "left";
    context.translate(x, gutters.top - 7);
    context.rotate(LEAN);
    const most = (gutters.top - 14) / Math.sin(-LEAN);
    const letters = lettersIn(view.across * labelStep(view.across));
    text(context, axes.keys, cell, letters, look, 0, 0, most);
    context.restore();
  });
  context.restore();

  context.strokeStyle = look.line;
  context.lineWidth = 1;
  context.strokeRect(gutters.left - 0.5, gutters.top - 0.5, right + 1, bottom + 1);
}

interface Mark {
  readonly cell: number;
  readonly middle: number;
  readonly labelled: boolean;
}

function marks(
  axis: Axis,
  first: number,
  scale: number,
  pixels: number,
  room: number,
  draw: (mark: Mark) => void,
): void {
  const labels = labelStep(scale);
  const labelled = labels > 0;
  const step = labels || niceStep(scale, room);
  // Round numbers are those of the text, which the first cell need not begin.
  let cell = Math.ceil((Math.floor(first) + axis.first) / step) * step - axis.first;
  for (; cell < axis.cells; cell += step) {
    const middle = pixel(cell + (labelled ? 0.5 : Math.min(0.5, 0.5 / scale)), first, scale, 1);
    if (middle > pixels) return;
    if (middle >= 0) draw({ cell, middle, labelled });
  }
}

function lettersIn(cell: number): number {
  return Math.min(Math.max(cell - 1, LETTERS.least), LETTERS.most);
}

function text(
  context: CanvasRenderingContext2D,
  axis: Axis,
  cell: number,
  letters: number, // pixels of a label's; 0 for the position instead
  look: Look,
  x: number,
  y: number,
  most: number,
): void {
  context.font = letters ? `${letters}px ${look.mono}` : `11.5px ${look.sans}`;
  context.fillStyle = letters ? look.ink : look.soft;
  const said = letters ? axis.label(cell) : (cell + axis.first).toLocaleString("en");
  context.fillText(shortLabel(context, said, most), x, y);
}

/** The token that the pointer or the pin is on, in a chip over the axis. */
export function drawChip(
  context: CanvasRenderingContext2D,
  side: "queries" | "keys",
  axis: Axis,
  cell: number,
  view: Viewport,
  size: Size,
  gutters: Gutters,
  look: Look,
  strong: boolean,
): void {
  const [first, scale, pixels] =
    side === "queries" ? [view.top, view.down, size.height] : [view.left, view.across, size.width];
  const middle = (cell + 0.5 - first) * scale;
  if (middle < 0 || middle > pixels) return;
  context.font = `600 12px ${look.mono}`;
  const most = side === "queries" ? gutters.left - 14 : 150;
  const said = shortLabel(context, axis.label(cell) || String(cell + axis.first), most);
  const width = context.measureText(said).width + 10;
  const x = side === "queries" ? gutters.left - width - 2 : gutters.left + middle - width / 2;
  const y = side === "queries" ? gutters.top + middle - 9 : gutters.top - 22;
  const left = side === "queries" ? x : Math.min(Math.max(x, 2), gutters.left + pixels - width);
  context.fillStyle = strong ? look.accent : look.ink;
  context.beginPath();
  context.roundRect(left, y, width, 18, 4);
  context.fill();
  context.fillStyle = strong ? look.onAccent : look.paper;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(said, left + 5, y + 9.5);
}
