/**
 * A filter such as `induction > 0.4 and layer < 5`, `entropy <= 1 or not first > 30%`, `12.3`.
 *
 *     any   := all ("or" all)*
 *     all   := one (("and" | ",") one)*
 *     one   := "not" one | "(" any ")" | name compare value | "marked" | layer.head
 */
import type { Cell } from "../../state/report.svelte";

export interface Row {
  readonly map: number;
  /** The head's number in the model. */
  readonly number: number;
  readonly marked: boolean;
  readonly values: Readonly<Record<string, Cell>>;
}

export type Test = (row: Row) => boolean;

/** What was not understood, and where: for the view to say in its language. */
export interface Misread {
  readonly kind: "name" | "compare" | "value" | "rest";
  readonly text: string;
}

export interface Filter {
  readonly test: Test;
  /** Columns that it asks for. */
  readonly columns: readonly string[];
}

const COMPARES: Record<string, (one: number, other: number) => boolean> = {
  ">=": (one, other) => one >= other,
  "<=": (one, other) => one <= other,
  "!=": (one, other) => one !== other,
  ">": (one, other) => one > other,
  "<": (one, other) => one < other,
  "=": (one, other) => one === other,
};
const SAME: Record<string, string> = { "≥": ">=", "≤": "<=", "≠": "!=", "==": "=" };

/**
 * Reads a filter. `names` are the columns under every name that they have: `first` and
 * `first token` and `첫 토큰` may be the same one.
 */
export function readFilter(text: string, names: ReadonlyMap<string, string>): Filter | Misread {
  try {
    const reader = new Reader(text, names);
    const test = reader.any();
    reader.finish();
    return { test, columns: [...reader.columns] };
  } catch (error) {
    if (error instanceof Unread) return error.misread;
    throw error;
  }
}

class Unread extends Error {
  constructor(readonly misread: Misread) {
    super(misread.kind);
  }
}

class Reader {
  readonly columns = new Set<string>();
  private rest: string;
  private readonly known: readonly (readonly [string, string])[];

  constructor(text: string, names: ReadonlyMap<string, string>) {
    this.rest = text.trim();
    this.known = [...names]
      .map(([name, column]) => [plain(name), column] as const)
      .sort(([one], [other]) => other.length - one.length);
  }

  any(): Test {
    const tests = [this.all()];
    while (this.take(/^(?:or\b|\|\|?)/i)) tests.push(this.all());
    return tests.length === 1 ? (tests[0] as Test) : (row) => tests.some((test) => test(row));
  }

  finish(): void {
    if (this.rest) throw new Unread({ kind: "rest", text: this.rest });
  }

  private all(): Test {
    const tests = [this.one()];
    while (this.take(/^(?:and\b|&&?|,)/i)) tests.push(this.one());
    return tests.length === 1 ? (tests[0] as Test) : (row) => tests.every((test) => test(row));
  }

  private one(): Test {
    if (this.take(/^(?:not\b|!)/i)) {
      const test = this.one();
      return (row) => !test(row);
    }
    if (this.take(/^\(/)) {
      const test = this.any();
      if (!this.take(/^\)/)) throw new Unread({ kind: "rest", text: this.rest });
      return test;
    }
    const head = this.take(/^(\d+)\.(\d+)(?![\d%])/);
    if (head) return (row) => row.map === Number(head[1]) && row.number === Number(head[2]);
    if (this.take(/^marked\b/i)) return (row) => row.marked;
    return this.comparison();
  }

  private comparison(): Test {
    const column = this.name();
    const sign = this.take(/^(>=|<=|!=|==|[=<>≥≤≠])/);
    if (!sign) throw new Unread({ kind: "compare", text: this.rest });
    const compare = COMPARES[SAME[sign[0]] ?? sign[0]];
    const text = this.take(/^(?:"([^"]*)"|'([^']*)')/);
    if (text) {
      const wanted = (text[1] ?? text[2] ?? "").toLowerCase();
      const equal = sign[0] === "=" || sign[0] === "==";
      return (row) => {
        const found = String(row.values[column] ?? "").toLowerCase();
        return equal ? found.includes(wanted) : !found.includes(wanted);
      };
    }
    const number = this.take(/^([-−+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(%?)/i);
    if (!number || !compare) throw new Unread({ kind: "value", text: this.rest });
    const limit = Number((number[1] ?? "").replace("−", "-")) * (number[2] ? 0.01 : 1);
    return (row) => {
      const value = valueOf(row, column);
      return value !== null && compare(value, limit);
    };
  }

  private name(): string {
    const rest = plain(this.rest);
    for (const [name, column] of this.known) {
      // One sign stays one sign in `plain`, so that lengths agree.
      if (rest.startsWith(name) && !/^[\p{L}\p{N}_]/u.test(rest.slice(name.length))) {
        this.rest = this.rest.slice(name.length).trimStart();
        this.columns.add(column);
        return column;
      }
    }
    throw new Unread({ kind: "name", text: /^[^\s<>=!≥≤≠]*/.exec(this.rest)?.[0] ?? "" });
  }

  private take(pattern: RegExp): RegExpExecArray | null {
    const found = pattern.exec(this.rest);
    if (found) this.rest = this.rest.slice(found[0].length).trimStart();
    return found;
  }
}

function plain(name: string): string {
  return name.toLowerCase().replaceAll("_", " ");
}

export function valueOf(row: Row, column: string): number | null {
  if (column === "layer") return row.map;
  if (column === "head") return row.number;
  const value = row.values[column];
  return typeof value === "number" ? value : null;
}
