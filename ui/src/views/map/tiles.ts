/**
 * The tiles of one head: asked for when they come into sight, taken back when they leave it
 * before they have come, and kept as numbers, so that a change of colours asks for nothing.
 */
import { paint } from "../../drawing/palette";
import { type Parameters, type Source, aborted, float32 } from "../../source/source";

/** What all tiles of a picture have in common: recording, map, batch, head, how, scaled. */
export type Picture = Parameters;

export interface Place {
  readonly level: number;
  readonly x: number;
  readonly y: number;
}

export interface Tile {
  readonly place: Place;
  readonly values: Float32Array;
  readonly rows: number;
  readonly columns: number;
  /** False for a quick first answer, in which some rows stand for all. */
  readonly exact: boolean;
}

interface Kept {
  readonly tile: Tile;
  image: OffscreenCanvas | null;
  colours: Uint32Array | null;
  used: number;
}

interface Asked {
  readonly place: Place;
  readonly stop: AbortController;
}

const KEPT = 320; // tiles: 80 MiB of numbers and as much of colours
const AT_ONCE = 4; // of the 6 connections that a browser opens: the pointer asks, too
const DRAFT_FROM = 8192; // tokens that one coarse tile spans

export class Tiles {
  private readonly kept = new Map<string, Kept>();
  private readonly asked = new Map<string, Asked>();
  private readonly refused = new Set<string>();
  private wanted: readonly Place[] = [];
  private clock = 0;
  private closed = false;

  constructor(
    private readonly source: Source,
    private readonly picture: Picture,
    private readonly tile: number,
    readonly levels: number,
    private readonly changed: () => void,
    private readonly failed: (error: unknown) => void,
  ) {}

  /** What is in sight now, the most urgent first; everything else is no longer waited for. */
  want(places: readonly Place[]): void {
    this.wanted = places;
    const names = new Set(places.map(name));
    for (const [key, { stop }] of this.asked) {
      if (!names.has(key)) {
        this.asked.delete(key);
        stop.abort();
      }
    }
    this.askNext();
  }

  get(place: Place): Tile | undefined {
    return this.find(place)?.tile;
  }

  /** Whether everything wanted is here, exact. */
  get settled(): boolean {
    return this.wanted.every((place) => this.get(place)?.exact || this.refused.has(name(place)));
  }

  /** A tile in colours; painted anew where the colours are others. */
  image(place: Place, colours: Uint32Array): OffscreenCanvas | undefined {
    const kept = this.find(place);
    if (!kept) return undefined;
    if (!kept.image || kept.colours !== colours) {
      const { columns, rows, values } = kept.tile;
      kept.image ??= new OffscreenCanvas(columns, rows);
      const context = kept.image.getContext("2d");
      const pixels = new ImageData(columns, rows);
      paint(values, colours, pixels);
      context?.putImageData(pixels, 0, 0);
      kept.colours = colours;
    }
    return kept.image;
  }

  close(): void {
    this.closed = true;
    for (const { stop } of this.asked.values()) stop.abort();
    this.asked.clear();
    this.kept.clear();
  }

  private find(place: Place): Kept | undefined {
    const found = this.kept.get(name(place));
    if (found) found.used = ++this.clock;
    return found;
  }

  private askNext(): void {
    for (const place of this.wanted) {
      if (this.asked.size >= AT_ONCE) return;
      const key = name(place);
      if (this.asked.has(key) || this.refused.has(key)) continue;
      const here = this.kept.get(key);
      if (here?.tile.exact) continue;
      const draft = !here && this.tile * 2 ** place.level > DRAFT_FROM;
      const stop = new AbortController();
      this.asked.set(key, { place, stop });
      void this.fetch(place, draft, stop);
    }
  }

  private async fetch(place: Place, draft: boolean, stop: AbortController): Promise<void> {
    const key = name(place);
    try {
      const answer = await this.source.ask(
        "tile",
        { ...this.picture, ...place, ...(draft ? { draft: 1 } : {}) },
        stop.signal,
      );
      if (stop.signal.aborted) return;
      const { values, shape } = float32(answer, "values");
      const exact = (answer.fields as { exact?: boolean }).exact !== false;
      const [rows = 0, columns = 0] = shape;
      this.kept.set(key, {
        tile: { place, values, rows, columns, exact },
        image: null,
        colours: null,
        used: ++this.clock,
      });
      this.forget();
      this.changed();
    } catch (error) {
      if (aborted(error) || stop.signal.aborted) return;
      this.refused.add(key); // asked for once: what was refused is refused again
      this.failed(error);
    } finally {
      if (this.asked.get(key)?.stop === stop) this.asked.delete(key);
      if (!this.closed) this.askNext();
    }
  }

  private forget(): void {
    if (this.kept.size <= KEPT) return;
    const top = this.levels - 1; // the whole map stands in for all that has not come yet
    const oldest = [...this.kept]
      .filter(([, { tile }]) => tile.place.level !== top)
      .sort(([, one], [, other]) => one.used - other.used);
    for (const [key] of oldest.slice(0, this.kept.size - KEPT)) this.kept.delete(key);
  }
}

function name({ level, x, y }: Place): string {
  return `${level} ${x} ${y}`;
}
