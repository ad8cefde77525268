/** The small maps of all heads, asked layer by layer, those in sight first. */
import { type Source, aborted, float32 } from "../../source/source";
import type { Pooling } from "../../state/selection.svelte";

export interface SmallMaps {
  /** (heads, rows, columns). */
  readonly values: Float32Array;
  readonly shape: readonly number[];
  /** False where, of a very long text, some rows stand for all. */
  readonly exact: boolean;
}

/** One layer's; `maps` fills when its answer comes. */
export class Layer {
  maps = $state.raw<SmallMaps | null>(null);
  failure = $state<string | null>(null);
}

const AT_ONCE = 2; // a layer keeps one core busy; the first in sight should not wait for others

export class Small {
  private readonly layers = new Map<number, Layer>();
  private wanted: readonly number[] = [];
  private readonly asked = new Map<number, AbortController>();

  constructor(
    private readonly source: Source,
    private readonly question: { recording: number; batch: number; size: number; how: Pooling },
  ) {}

  layer(map: number): Layer {
    let found = this.layers.get(map);
    if (!found) this.layers.set(map, (found = new Layer()));
    return found;
  }

  /** The layers in sight, in order; others that are on their way are given up. */
  want(maps: readonly number[]): void {
    this.wanted = maps;
    for (const [map, stop] of this.asked) {
      if (!maps.includes(map)) {
        this.asked.delete(map);
        stop.abort();
      }
    }
    this.askNext();
  }

  close(): void {
    this.wanted = [];
    for (const stop of this.asked.values()) stop.abort();
    this.asked.clear();
  }

  private askNext(): void {
    for (const map of this.wanted) {
      if (this.asked.size >= AT_ONCE) return;
      const layer = this.layer(map);
      if (!this.asked.has(map) && !layer.maps && !layer.failure) void this.fetch(map, layer);
    }
  }

  private async fetch(map: number, layer: Layer): Promise<void> {
    const stop = new AbortController();
    this.asked.set(map, stop);
    try {
      const answer = await this.source.ask("grid", { ...this.question, map }, stop.signal);
      const { values, shape } = float32(answer, "values");
      const exact = (answer.fields as { exact?: boolean }).exact !== false;
      layer.maps = { values, shape, exact };
    } catch (error) {
      if (!aborted(error)) layer.failure = error instanceof Error ? error.message : String(error);
    } finally {
      if (this.asked.get(map) === stop) this.asked.delete(map);
      this.askNext();
    }
  }
}
