import { describe, expect, it } from "vitest";

import {
  PALETTES,
  colourTable,
  inkOn,
  logRange,
  paint,
  part,
  rgb,
} from "../../src/drawing/palette";

function lightness([red, green, blue]: [number, number, number]): number {
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

describe("every palette", () => {
  it.each(PALETTES)("%s rises or falls in lightness all the way", (palette) => {
    for (const dark of [false, true]) {
      const steps = Array.from({ length: 65 }, (_, at) => lightness(rgb(palette, dark, at / 64)));
      const changes = steps.slice(1).map((one, at) => one - (steps[at] ?? 0));
      const sign = Math.sign((steps.at(-1) ?? 0) - (steps[0] ?? 0));
      expect(changes.every((change) => change * sign >= 0)).toBe(true);
    }
  });
});

describe("a colour", () => {
  const range = logRange(2048);

  it("is that of the exact weight, to within a step that a screen can show", () => {
    for (const scale of [range, { scale: "linear", low: 0, high: 1 } as const]) {
      const table = colourTable("viridis", false, scale);
      const weights = Float32Array.from({ length: 2000 }, (_, at) => 10 ** (-5 * (at / 2000)));
      const image = { data: new Uint8ClampedArray(4 * weights.length) } as ImageData;
      paint(weights, table, image);
      weights.forEach((weight, at) => {
        const wanted = rgb("viridis", false, part(scale, weight));
        wanted.forEach((channel, which) =>
          expect(Math.abs(channel - (image.data[4 * at + which] ?? -9))).toBeLessThanOrEqual(3),
        );
        expect(image.data[4 * at + 3]).toBe(255);
      });
    }
  });

  it("of exactly 0 is none, however small others are", () => {
    const table = colourTable("amber", false, range);
    const image = { data: new Uint8ClampedArray(8) } as ImageData;
    paint(Float32Array.of(0, 1e-30), table, image);
    expect([image.data[3], image.data[7]]).toEqual([0, 255]);
  });
});

it("the logarithmic scale begins below an even share", () => {
  expect(logRange(2048).low).toBeCloseTo(1e-4);
  expect(logRange(131_072).low).toBeCloseTo(1e-6);
  expect(logRange(5).low).toBe(1e-3);
  expect(part(logRange(2048), 1e-2)).toBeCloseTo(0.5);
});

it("numbers on a colour are black or white, whichever reads better", () => {
  expect(inkOn("amber", false, 0)).toBe("black");
  expect(inkOn("amber", false, 1)).toBe("white");
  expect(inkOn("viridis", true, 0)).toBe("white");
});
