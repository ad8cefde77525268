/** What is known of the weight under the pointer: exact, with its rank in the row. */
import { type Source, fields, float32, int32 } from "../../source/source";
import type { Cell } from "./overlay";

export interface Known {
  readonly weight: number;
  /** 1 is the largest of the row; `null` for a hidden key. */
  readonly rank: number | null;
  readonly visible: number;
}

export interface Row {
  readonly weights: Float32Array;
  readonly ranks: Int32Array;
  readonly visible: number;
}

/** One head: recording, map, batch, head. */
export type Head = Readonly<{ recording: number; map: number; batch: number; head: number }>;

const WHOLE_ROWS = 16_384; // keys: up to here a row is asked as a whole and kept
const ROWS = 24;
const REST = 40; // milliseconds that the pointer rests before anything is asked

/** Reads cells of one head; rows are kept, so that moving along one asks nothing. */
export class CellReader {
  private readonly rows = new Map<number, Promise<Row>>();

  constructor(
    private readonly source: Source,
    private readonly head: Head,
    private readonly keys: number,
  ) {}

  async read(cell: Cell, signal: AbortSignal): Promise<Known> {
    if (this.keys <= WHOLE_ROWS) {
      if (!this.rows.has(cell.query)) await rest(signal);
      const row = await this.row(cell.query);
      const rank = row.ranks[cell.key] ?? 0;
      return { weight: row.weights[cell.key] ?? 0, rank: rank || null, visible: row.visible };
    }
    await rest(signal);
    return fields<Known>(this.source, "weight", { ...this.head, ...cell }, signal);
  }

  row(query: number): Promise<Row> {
    let asked = this.rows.get(query);
    if (!asked) {
      asked = this.fetch(query);
      this.rows.set(query, asked);
      asked.catch(() => this.rows.delete(query));
      const oldest = this.rows.keys().next().value;
      if (this.rows.size > ROWS && oldest !== undefined) this.rows.delete(oldest);
    }
    return asked;
  }

  private async fetch(query: number): Promise<Row> {
    const answer = await this.source.ask("row", { ...this.head, query });
    return {
      weights: float32(answer, "weights").values,
      ranks: int32(answer, "ranks").values,
      visible: (answer.fields as { visible: number }).visible,
    };
  }
}

/** The keys that a row reads most, the largest first. */
export function mostRead({ weights, ranks }: Row, count: number): { key: number; weight: number }[] {
  const found: { key: number; weight: number }[] = [];
  ranks.forEach((rank, key) => {
    if (rank >= 1 && rank <= count) found[rank - 1] = { key, weight: weights[key] ?? 0 };
  });
  return found.filter((one) => one.weight > 0);
}

function rest(signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, REST);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
