/**
 * Which part of a map is in sight: pure geometry, in keys across and queries down.
 *
 * Both axes have a scale of their own, pixels per weight. They are alike wherever that can be
 * seen, but a decode step of 1 query over 8,192 keys would be a hair line with square cells.
 */

export interface Size {
  readonly width: number;
  readonly height: number;
}

export interface Viewport {
  /** Key and query at the left and upper edge; fractions are parts of a cell. */
  readonly left: number;
  readonly top: number;
  /** Pixels per key and per query. */
  readonly across: number;
  readonly down: number;
}

export interface Extent {
  readonly keys: number;
  readonly queries: number;
}

/** A single weight is never larger than this, in pixels. */
export const LARGEST = 64;
const THIN = 0.2;

/** The whole map; cells are square unless one side would be a thin strip. */
export function whole(map: Extent, size: Size): Viewport {
  let across = Math.min(LARGEST, size.width / map.keys);
  let down = Math.min(LARGEST, size.height / map.queries);
  const square = Math.min(across, down);
  const strip = Math.min(
    (square * map.keys) / size.width,
    (square * map.queries) / size.height,
  );
  if (strip > THIN || (across === LARGEST && down === LARGEST)) across = down = square;
  return clamp({ left: 0, top: 0, across, down }, map, size);
}

/** Nothing but the map in sight; what is smaller than the window lies at its upper left. */
export function clamp(view: Viewport, map: Extent, size: Size): Viewport {
  const last = (cells: number, pixels: number, scale: number): number =>
    Math.max(0, cells - pixels / scale);
  return {
    ...view,
    left: Math.min(Math.max(view.left, 0), last(map.keys, size.width, view.across)),
    top: Math.min(Math.max(view.top, 0), last(map.queries, size.height, view.down)),
  };
}

/** Larger by `factor` around a point of the window, which stays where it is. */
export function zoomed(
  view: Viewport,
  factor: number,
  at: { readonly x: number; readonly y: number },
  map: Extent,
  size: Size,
): Viewport {
  const least = whole(map, size);
  const across = Math.min(Math.max(view.across * factor, least.across), LARGEST);
  const down = Math.min(Math.max(view.down * factor, least.down), LARGEST);
  const key = view.left + at.x / view.across;
  const query = view.top + at.y / view.down;
  return clamp(
    { left: key - at.x / across, top: query - at.y / down, across, down },
    map,
    size,
  );
}

export function panned(view: Viewport, x: number, y: number, map: Extent, size: Size): Viewport {
  const moved = { ...view, left: view.left - x / view.across, top: view.top - y / view.down };
  return clamp(moved, map, size);
}

/** Moved as little as brings a cell into sight, with a margin around it. */
export function showing(
  view: Viewport,
  cell: { readonly key: number; readonly query: number },
  map: Extent,
  size: Size,
): Viewport {
  const near = (first: number, at: number, pixels: number, scale: number): number => {
    const shown = pixels / scale;
    const margin = Math.min(shown / 4, 48 / scale);
    return Math.min(Math.max(first, at + 1 + margin - shown), at - margin);
  };
  return clamp(
    {
      ...view,
      left: near(view.left, cell.key, size.width, view.across),
      top: near(view.top, cell.query, size.height, view.down),
    },
    map,
    size,
  );
}

/** A cell in the middle, with weights of so many pixels. */
export function centred(
  cell: { readonly key: number; readonly query: number },
  scale: number,
  map: Extent,
  size: Size,
): Viewport {
  const least = whole(map, size);
  const across = Math.min(Math.max(scale, least.across), LARGEST);
  const down = Math.min(Math.max(scale, least.down), LARGEST);
  return clamp(
    {
      left: cell.key + 0.5 - size.width / across / 2,
      top: cell.query + 0.5 - size.height / down / 2,
      across,
      down,
    },
    map,
    size,
  );
}

export interface TileRange {
  readonly level: number;
  readonly left: number;
  readonly right: number; // inside
  readonly top: number;
  readonly bottom: number; // inside
}

const MOST_TILES = 160;

/** The tiles to draw: the coarsest level whose cells are not larger than a pixel of the screen. */
export function tilesInSight(
  view: Viewport,
  map: Extent,
  size: Size,
  { tile, levels, ratio }: { tile: number; levels: number; ratio: number },
): TileRange {
  const finest = Math.max(view.across, view.down) * ratio;
  let level = Math.min(Math.max(Math.ceil(-Math.log2(finest) - 1e-6), 0), levels - 1);
  for (; ; level++) {
    const span = tile * 2 ** level;
    const range = {
      level,
      left: Math.floor(view.left / span),
      right: Math.floor((Math.min(view.left + size.width / view.across, map.keys) - 1e-9) / span),
      top: Math.floor(view.top / span),
      bottom: Math.floor(
        (Math.min(view.top + size.height / view.down, map.queries) - 1e-9) / span,
      ),
    };
    const count = (range.right - range.left + 1) * (range.bottom - range.top + 1);
    if (count <= MOST_TILES || level === levels - 1) return range;
  }
}
