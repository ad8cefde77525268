/** Draws the tiles in sight; what has not come yet is shown by a coarser tile that has. */
import type { Place, Tiles } from "./tiles";
import type { Extent, TileRange, Viewport } from "./viewport";

export interface Scene {
  readonly view: Viewport;
  readonly map: Extent;
  /** Pixels of the screen for one of the page. */
  readonly ratio: number;
  readonly range: TileRange;
  readonly tile: number;
  readonly colours: Uint32Array;
  /** Of what is hidden, and of what has not come. */
  readonly ground: string;
  /** The whole map as it was before: shown faintly where nothing has come yet. */
  readonly before: OffscreenCanvas | null;
}

const FAINT = 0.3;

/** The tiles in sight, from the middle outwards. */
export function places({ level, left, right, top, bottom }: TileRange): Place[] {
  const found: Place[] = [];
  for (let y = top; y <= bottom; y++) for (let x = left; x <= right; x++) found.push({ level, x, y });
  const [middle, centre] = [(left + right) / 2, (top + bottom) / 2];
  const far = ({ x, y }: Place): number => Math.hypot(x - middle, y - centre);
  return found.sort((one, other) => far(one) - far(other));
}

/** Where a key or query begins on the screen: whole pixels, so that tiles meet without a seam. */
export function pixel(cell: number, first: number, scale: number, ratio: number): number {
  return Math.round((cell - first) * scale * ratio);
}

export function drawTiles(context: CanvasRenderingContext2D, tiles: Tiles, scene: Scene): void {
  const { view, map, ratio, range } = scene;
  context.imageSmoothingEnabled = false;
  context.fillStyle = scene.ground;
  const right = pixel(map.keys, view.left, view.across, ratio);
  const bottom = pixel(map.queries, view.top, view.down, ratio);
  context.fillRect(0, 0, right, bottom);
  const { before } = scene;
  if (before) {
    const left = pixel(0, view.left, view.across, ratio);
    const top = pixel(0, view.top, view.down, ratio);
    context.globalAlpha = FAINT;
    context.drawImage(before, left, top, right - left, bottom - top);
    context.globalAlpha = 1;
  }
  for (const place of places(range)) drawTile(context, tiles, scene, place);
}

function drawTile(
  context: CanvasRenderingContext2D,
  tiles: Tiles,
  { view, map, ratio, tile, colours }: Scene,
  place: Place,
): void {
  const span = tile * 2 ** place.level;
  const keys = { first: place.x * span, stop: Math.min((place.x + 1) * span, map.keys) };
  const queries = { first: place.y * span, stop: Math.min((place.y + 1) * span, map.queries) };
  const x = pixel(keys.first, view.left, view.across, ratio);
  const y = pixel(queries.first, view.top, view.down, ratio);
  const width = pixel(keys.stop, view.left, view.across, ratio) - x;
  const height = pixel(queries.stop, view.top, view.down, ratio) - y;
  for (let level = place.level; level < tiles.levels; level++) {
    const up = level - place.level;
    const above = { level, x: place.x >> up, y: place.y >> up };
    const image = tiles.image(above, colours);
    if (!image) continue;
    // Of a coarser tile, the part that lies under this one.
    const cell = 2 ** level;
    const left = keys.first / cell - above.x * tile;
    const top = queries.first / cell - above.y * tile;
    const right = Math.min(keys.stop / cell - above.x * tile, image.width);
    const bottom = Math.min(queries.stop / cell - above.y * tile, image.height);
    // The last cell of an axis may stand for fewer weights than the others.
    context.drawImage(image, left, top, right - left, bottom - top, x, y, width, height);
    return;
  }
}
