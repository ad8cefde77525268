/**
 * From weights to colours. Every palette rises steadily in lightness, so that it reads without
 * telling hues apart and in print.
 */
import type { Scale } from "../state/selection.svelte";

export const PALETTES = ["amber", "viridis", "cividis"] as const;
export type Palette = (typeof PALETTES)[number];

const ANCHORS: Record<string, readonly string[]> = {
  "amber light": [
    "#fff6e3", "#ffe7bd", "#ffd086", "#fcb14c", "#f28a22", "#d66314", "#ab400f", "#78250d", "#3f0f0b",
  ],
  "amber dark": [
    "#211c1c", "#3d221c", "#67301b", "#95431a", "#c35f1c", "#e88428", "#fcae53", "#ffd596", "#fff5e2",
  ],
  viridis: [
    "#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725",
  ],
  cividis: [
    "#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#fee838",
  ],
}; // prettier-ignore

function anchors(palette: Palette, dark: boolean): readonly string[] {
  return ANCHORS[palette] ?? ANCHORS[`${palette} ${dark ? "dark" : "light"}`] ?? [];
}

/** The colour of `part`, from 0 (least) to 1 (most). */
export function rgb(palette: Palette, dark: boolean, part: number): [number, number, number] {
  const points = anchors(palette, dark);
  const at = Math.min(Math.max(part, 0), 1) * (points.length - 1);
  const low = channels(points[Math.floor(at)]);
  const high = channels(points[Math.ceil(at)]);
  const mix = at - Math.floor(at);
  return [0, 1, 2].map((i) =>
    Math.round((low[i] ?? 0) * (1 - mix) + (high[i] ?? 0) * mix),
  ) as [number, number, number];
}

export function css(palette: Palette, dark: boolean, part: number): string {
  return `rgb(${rgb(palette, dark, part).join(" ")})`;
}

/** Whether black or white text reads better on a colour. */
export function inkOn(palette: Palette, dark: boolean, part: number): "black" | "white" {
  const [red, green, blue] = rgb(palette, dark, part).map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "black" : "white";
}

function channels(colour = "#000000"): [number, number, number] {
  const number = Number.parseInt(colour.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

/** What a colour stands for: from `low` to `high`, in equal steps or in equal factors. */
export interface Range {
  readonly scale: Scale;
  readonly low: number;
  readonly high: number;
}

/** The logarithmic scale of a map starts a factor below what each key would get evenly. */
export function logRange(keys: number): Range {
  return { scale: "log", low: Math.min(1e-3, 10 ** Math.floor(-Math.log10(keys))), high: 1 };
}

/** Where in its range a value lies, from 0 to 1. */
export function part(range: Range, value: number): number {
  if (!(value > range.low)) return 0;
  if (value >= range.high) return 1;
  return range.scale === "linear"
    ? (value - range.low) / (range.high - range.low)
    : Math.log(value / range.low) / Math.log(range.high / range.low);
}

/**
 * The colour of every float32, by its upper 16 bits (sign, exponent, 7 bits of the fraction):
 * RGBA as one little-endian number. A lookup takes the place of a logarithm for each cell; the
 * value is right to within 0.4 %, finer than the 256 steps that a screen can show.
 * Exactly 0 is no colour at all: the key is hidden, or the weight is below float32.
 */
export function colourTable(palette: Palette, dark: boolean, range: Range): Uint32Array {
  const table = new Uint32Array(1 << 16);
  const bits = new Uint32Array(1);
  const value = new Float32Array(bits.buffer);
  const steps = new Uint32Array(1024);
  for (let step = 0; step < steps.length; step++) {
    const [red, green, blue] = rgb(palette, dark, step / (steps.length - 1));
    steps[step] = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  }
  for (let upper = 1; upper <= 0x7f80; upper++) {
    bits[0] = (upper << 16) | 0x8000; // the middle of the values that share these bits
    table[upper] = steps[Math.round(part(range, value[0] ?? 0) * (steps.length - 1))] ?? 0;
  }
  return table;
}

/** Colours cells into an image of the same size. */
export function paint(values: Float32Array, table: Uint32Array, image: ImageData): void {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const pixels = new Uint32Array(image.data.buffer);
  for (let at = 0; at < bits.length; at++) pixels[at] = table[(bits[at] ?? 0) >>> 16] ?? 0;
}
