/**
 * The picture of one head: a window onto the map, drawn on a canvas whenever something changed.
 *
 * It is a plot and not a photograph, so it is drawn here and not by a viewer of deep-zoom images:
 * its axes, rulers and numbers move with the cells in the same frame, a single weight may be 64
 * pixels large, and the two sides may have scales of their own.
 */
import { type Palette, type Range, colourTable } from "../../drawing/palette";
import type { Source } from "../../source/source";
import { type Axis, type Gutters, type Look, drawAxes, drawChip } from "./axes";
import { drawTiles, places } from "./draw";
import { listen } from "./gestures";
import {
  type Cell,
  type Segment,
  drawNumbers,
  drawRulers,
  drawSegments,
  weightAt,
} from "./overlay";
import { type Picture, Tiles } from "./tiles";
import {
  type Extent,
  LARGEST,
  type Size,
  type TileRange,
  type Viewport,
  centred,
  clamp,
  panned,
  showing,
  tilesInSight,
  whole,
  zoomed,
} from "./viewport";

export interface Events {
  /** The pointer is on this cell, or has left the map. */
  hovered(cell: Cell | null): void;
  pinned(cell: Cell): void;
  /** The window has come to rest elsewhere. */
  moved(view: Viewport, size: Size): void;
  /** Tiles came, the window moved, or all is there. */
  drawn(settled: boolean): void;
  failed(error: unknown): void;
  wheelIsOurs(event: WheelEvent): boolean;
}

export interface Colouring {
  readonly palette: Palette;
  readonly dark: boolean;
  readonly range: Range;
}

/** What is drawn: everything but the window and the colours. */
export interface Subject {
  readonly picture: Picture;
  readonly extent: Extent;
  readonly tile: number;
  readonly levels: number;
  readonly queries: Axis;
  readonly keys: Axis;
}

const EMPTY: Size = { width: 0, height: 0 };
const GLIDE = 160; // milliseconds of a step by key or button

export class Plot {
  view: Viewport = { left: 0, top: 0, across: 1, down: 1 };
  size: Size = EMPTY; // of the plot, without the axes
  gutters: Gutters = { left: 96, top: 84 };
  private subject: Subject | null = null;
  private tiles: Tiles | null = null;
  private before: OffscreenCanvas | null = null; // another head, until this one's whole map is here
  private colouring: Colouring | null = null;
  private colours: Uint32Array = new Uint32Array(0);
  private look: Look | null = null;
  private hover: Cell | null = null;
  private pin: Cell | null = null;
  private segments: readonly Segment[] = [];
  private ratio = 1;
  private frame = 0;
  private glide: ((now: number) => boolean) | null = null;
  private opening: { readonly cell: Cell; readonly scale: number } | null = null;
  private readonly context: CanvasRenderingContext2D;
  private readonly endListening: () => void;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly source: Source,
    private readonly events: Events,
  ) {
    const context = canvas.getContext("2d");
    if (!context) throw new Error("this browser has no 2D canvas");
    this.context = context;
    this.endListening = listen(canvas, {
      pan: (x, y) => this.set(panned(this.view, x, y, this.extent, this.size)),
      zoom: (factor, at) => this.set(zoomed(this.view, factor, this.inPlot(at), this.extent, this.size)),
      hover: (at) => this.setHover(at && this.cellAt(at)),
      tap: (at) => {
        const cell = this.cellAt(at);
        if (cell) events.pinned(cell);
      },
      doubleTap: (at) => {
        const cell = this.cellAt(at);
        if (cell) this.goTo(cell, this.view.across < 24 ? 40 : LARGEST);
      },
      fling: (x, y) => this.fling(x, y),
      hold: () => (this.glide = null),
      wheelIsOurs: (event) => events.wheelIsOurs(event),
    });
  }

  close(): void {
    cancelAnimationFrame(this.frame);
    this.endListening();
    this.tiles?.close();
  }

  // -- what is shown ------------------------------------------------------------------------

  /** Another head, pooling or normalisation; the window stays where it is on a map as large. */
  show(subject: Subject): void {
    const before = this.subject;
    const image = this.overview() ?? this.before;
    this.tiles?.close();
    this.subject = subject;
    this.tiles = new Tiles(
      this.source,
      subject.picture,
      subject.tile,
      subject.levels,
      () => this.redraw(),
      (error) => this.events.failed(error),
    );
    const same =
      before?.extent.keys === subject.extent.keys &&
      before.extent.queries === subject.extent.queries;
    this.before = same ? image : null;
    if (!same && this.size !== EMPTY) this.set(whole(subject.extent, this.size));
    this.redraw();
  }

  colour(colouring: Colouring): void {
    this.colouring = colouring;
    this.colours = colourTable(colouring.palette, colouring.dark, colouring.range);
    this.redraw();
  }

  dress(look: Look): void {
    this.look = look;
    this.redraw();
  }

  resize(width: number, height: number, ratio: number, gutters: Gutters): void {
    this.gutters = gutters;
    this.ratio = ratio;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const fresh = this.size === EMPTY;
    const before = this.size;
    this.size = {
      width: Math.max(width - gutters.left - 1, 1),
      height: Math.max(height - gutters.top - 1, 1),
    };
    if (this.subject) {
      if (fresh) this.set(whole(this.extent, this.size));
      else {
        const all = whole(this.extent, before);
        const wasWhole = Math.abs(this.view.across / all.across - 1) < 0.01;
        this.set(
          wasWhole
            ? whole(this.extent, this.size)
            : zoomed(this.view, 1, { x: 0, y: 0 }, this.extent, this.size),
        );
      }
    }
    this.draw(performance.now()); // at once: a resized canvas is empty
  }

  mark(pin: Cell | null): void {
    this.pin = pin;
    this.redraw();
  }

  divide(segments: readonly Segment[]): void {
    this.segments = segments;
    this.redraw();
  }

  // -- moving -------------------------------------------------------------------------------

  /** Around a cell, with weights of so many pixels; taken up as soon as there is a map. */
  open(cell: Cell, scale: number): void {
    if (this.subject && this.size !== EMPTY) {
      this.set(centred(cell, scale, this.extent, this.size));
    } else {
      this.opening = { cell, scale };
    }
  }

  showAll(): void {
    this.slide(whole(this.extent, this.size));
  }

  zoomBy(factor: number): void {
    const at = this.pin && this.isInSight(this.pin) ? this.middleOf(this.pin) : this.middle();
    this.slide(zoomed(this.view, factor, at, this.extent, this.size));
  }

  goTo(cell: Cell, scale: number): void {
    this.slide(centred(cell, scale, this.extent, this.size));
  }

  /** Brings a cell into sight, if it is not. */
  reveal(cell: Cell): void {
    if (this.subject) this.slide(showing(this.view, cell, this.extent, this.size));
  }

  panTo(cell: Cell): void {
    const { width, height } = this.size;
    const left = cell.key - width / this.view.across / 2;
    const top = cell.query - height / this.view.down / 2;
    this.glide = null;
    this.set(clamp({ ...this.view, left, top }, this.extent, this.size));
  }

  // -- asking the picture -------------------------------------------------------------------

  get extent(): Extent {
    return this.subject?.extent ?? { keys: 1, queries: 1 };
  }

  get settled(): boolean {
    return this.tiles?.settled ?? false;
  }

  /** The weight of a cell, if it is at hand. */
  weight(cell: Cell): number | undefined {
    return this.tiles && this.subject
      ? weightAt(this.tiles, this.subject.tile, cell)
      : undefined;
  }

  /** What the coloured dot over a cell stands for, if its tile is here. */
  dot(cell: Cell): { value: number; size: number; exact: boolean } | undefined {
    const range = this.range();
    if (!range || !this.tiles || !this.subject) return undefined;
    const size = 2 ** range.level;
    const span = this.subject.tile * size;
    const x = Math.floor(cell.key / span);
    const y = Math.floor(cell.query / span);
    const tile = this.tiles.get({ level: range.level, x, y });
    const row = Math.floor((cell.query - y * span) / size);
    const column = Math.floor((cell.key - x * span) / size);
    const value = tile?.values[row * tile.columns + column];
    return tile && value !== undefined ? { value, size, exact: tile.exact } : undefined;
  }

  /** The largest value of the whole map, as far as it is known. */
  largest(): number | undefined {
    const level = (this.subject?.levels ?? 1) - 1;
    return this.tiles?.get({ level, x: 0, y: 0 })?.values.reduce((a, b) => Math.max(a, b), 0);
  }

  /** The whole map as a small picture. */
  overview(): OffscreenCanvas | undefined {
    const level = (this.subject?.levels ?? 1) - 1;
    return this.tiles?.image({ level, x: 0, y: 0 }, this.colours);
  }

  // -- inside -------------------------------------------------------------------------------

  private inPlot(at: { x: number; y: number }): { x: number; y: number } {
    return { x: at.x - this.gutters.left, y: at.y - this.gutters.top };
  }

  private cellAt(at: { x: number; y: number }): Cell | null {
    const { x, y } = this.inPlot(at);
    if (!this.subject || x < 0 || y < 0 || x >= this.size.width || y >= this.size.height) return null;
    const key = Math.floor(this.view.left + x / this.view.across);
    const query = Math.floor(this.view.top + y / this.view.down);
    return key < this.extent.keys && query < this.extent.queries ? { key, query } : null;
  }

  private setHover(cell: Cell | null): void {
    if (cell?.key === this.hover?.key && cell?.query === this.hover?.query) return;
    this.hover = cell;
    this.events.hovered(cell);
    this.redraw();
  }

  private middle(): { x: number; y: number } {
    return { x: this.size.width / 2, y: this.size.height / 2 };
  }

  private middleOf(cell: Cell): { x: number; y: number } {
    return {
      x: (cell.key + 0.5 - this.view.left) * this.view.across,
      y: (cell.query + 0.5 - this.view.top) * this.view.down,
    };
  }

  private isInSight(cell: Cell): boolean {
    const { x, y } = this.middleOf(cell);
    return x >= 0 && y >= 0 && x <= this.size.width && y <= this.size.height;
  }

  private set(view: Viewport): void {
    this.view = view;
    this.events.moved(view, this.size);
    this.redraw();
  }

  /** From here to there, straight towards what will be in the middle. */
  private slide(to: Viewport): void {
    const from = this.view;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.glide = null;
      this.set(to);
      return;
    }
    const start = performance.now();
    this.glide = (now) => {
      const time = Math.min((now - start) / GLIDE, 1);
      const done = time * (2 - time);
      const between = (a: number, b: number): number => a * (b / a) ** done;
      const across = between(from.across, to.across);
      const down = between(from.down, to.down);
      // While the scale grows evenly in factors, what is in sight moves with its inverse.
      const way = (a: number, b: number, scale: number): number =>
        Math.abs(b / a - 1) < 1e-6 ? done : (1 / scale - 1 / a) / (1 / b - 1 / a);
      const sideways = way(from.across, to.across, across);
      const downwards = way(from.down, to.down, down);
      this.set({
        across,
        down,
        left: from.left + (to.left - from.left) * sideways,
        top: from.top + (to.top - from.top) * downwards,
      });
      if (time < 1) return true;
      this.set(to);
      return false;
    };
    this.redraw();
  }

  private fling(x: number, y: number): void {
    let last = performance.now();
    let [across, down] = [x, y];
    this.glide = (now) => {
      const passed = Math.min(now - last, 50);
      last = now;
      this.set(panned(this.view, across * passed, down * passed, this.extent, this.size));
      const left = Math.exp(-passed / 250);
      across *= left;
      down *= left;
      return Math.hypot(across, down) > 0.02;
    };
    this.redraw();
  }

  redraw(): void {
    if (!this.frame) this.frame = requestAnimationFrame((now) => this.draw(now));
  }

  private range(): TileRange | undefined {
    if (!this.subject || this.size === EMPTY) return undefined;
    const { tile, levels } = this.subject;
    return tilesInSight(this.view, this.extent, this.size, { tile, levels, ratio: this.ratio });
  }

  private draw(now: number): void {
    this.frame = 0;
    if (this.opening && this.subject && this.size !== EMPTY) {
      const { cell, scale } = this.opening;
      this.opening = null;
      this.view = centred(cell, scale, this.extent, this.size);
      this.events.moved(this.view, this.size);
    }
    if (this.glide && !this.glide(now)) this.glide = null;
    const range = this.range();
    const { subject, tiles, look, colouring, context, view, size, ratio, gutters } = this;
    if (!range || !subject || !tiles || !look || !colouring) return;
    const top = { level: subject.levels - 1, x: 0, y: 0 };
    if (tiles.get(top)) this.before = null;
    tiles.want(this.isRough(tiles, top) ? [top, ...places(range)] : places(range));

    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.save();
    context.translate(gutters.left * ratio, gutters.top * ratio);
    context.beginPath();
    context.rect(0, 0, size.width * ratio, size.height * ratio);
    context.clip();
    const map = subject.extent;
    drawTiles(context, tiles, {
      view, map, ratio, range, tile: subject.tile, colours: this.colours, ground: look.sunken,
      before: this.before,
    }); // prettier-ignore
    context.scale(ratio, ratio);
    drawNumbers(context, tiles, subject.tile, view, map, size, colouring, look);
    const start = { query: subject.queries.first, key: subject.keys.first };
    drawSegments(context, this.segments, start, view, map, size, look);
    if (this.hover) drawRulers(context, this.hover, view, map, size, look, false);
    if (this.pin) drawRulers(context, this.pin, view, map, size, look, true);
    context.restore();

    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawAxes(context, view, size, gutters, subject, look);
    for (const [cell, strong] of [[this.pin, true], [this.hover, false]] as const) {
      if (!cell) continue;
      drawChip(context, "keys", subject.keys, cell.key, view, size, gutters, look, strong);
      drawChip(context, "queries", subject.queries, cell.query, view, size, gutters, look, strong);
    } // prettier-ignore
    this.events.drawn(tiles.settled);
    if (this.glide) this.redraw();
  }

  private isRough(tiles: Tiles, place: { level: number; x: number; y: number }): boolean {
    return !tiles.get(place)?.exact;
  }
}
