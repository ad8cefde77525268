/** The report on the heads of a recording: one row a head, asked map by map, filling up. */
import { type Source, aborted, fields } from "../source/source";
import type { Recorded } from "./about";

export type Measures = "default" | "all";
export type Cell = number | string | null;

export interface HeadRow {
  /** The number of the map, and the head's place along its axis. */
  readonly map: number;
  readonly head: number;
  readonly values: Readonly<Record<string, Cell>>;
}

type Columns = Readonly<Record<string, readonly Cell[]>>;

export class Report {
  rows = $state.raw<readonly HeadRow[]>([]);
  /** Names of the measures, in the order of the report. */
  columns = $state.raw<readonly string[]>([]);
  done = $state(0);
  failure = $state<string | null>(null);

  constructor(
    source: Source,
    recording: number,
    readonly measures: Measures,
    recorded: Recorded,
    signal?: AbortSignal,
  ) {
    void this.load(source, recording, recorded, signal);
  }

  /** Fills up, layer by layer. */
  private async load(
    source: Source,
    recording: number,
    recorded: Recorded,
    signal?: AbortSignal,
  ): Promise<void> {
    try {
      for (const map of recorded.maps.keys()) {
        const { columns } = await fields<{ columns: Columns }>(
          source,
          "heads",
          { recording, map, measures: this.measures },
          signal,
        );
        this.columns = Object.keys(columns).filter((name) => !KEYS.has(name));
        this.rows = [...this.rows, ...rows(map, columns)];
        this.done = map + 1;
      }
    } catch (error) {
      if (!aborted(error)) this.failure = error instanceof Error ? error.message : String(error);
    }
  }

  /** The value of one head, `undefined` while it has not come. */
  value(map: number, head: number, column: string): Cell | undefined {
    return this.places.get(`${map} ${head}`)?.values[column];
  }

  private readonly places = $derived(
    new Map(this.rows.map((row) => [`${row.map} ${row.head}`, row])),
  );
}

const KEYS = new Set(["layer", "name", "head"]);

function rows(map: number, columns: Columns): HeadRow[] {
  const heads = columns.head ?? [];
  return heads.map((_, head) => ({
    map,
    head,
    values: Object.fromEntries(
      Object.entries(columns).map(([name, values]) => [name, values[head] ?? null]),
    ),
  }));
}
