/** What the reader looks at: shared by all views, kept in the address. */

export const VIEWS = [
  "grid",
  "map",
  "text",
  "steps",
  "flow",
  "heads",
  "segments",
  "compare",
] as const;
export type View = (typeof VIEWS)[number];
export type Pooling = "max" | "mean";
export type Scale = "log" | "linear";

interface Field<T> {
  readonly initial: T;
  /** `undefined` for a text that means nothing: the initial value is taken. */
  read(text: string): T | undefined;
  write(value: T): string;
  /** A change is a step that the back button undoes. */
  readonly step: boolean;
}

function choice<T extends string>(values: readonly T[], initial: T, step = false): Field<T> {
  return {
    initial,
    read: (text) => values.find((value) => value === text),
    write: (value) => value,
    step,
  };
}

function index(step = false): Field<number> {
  return {
    initial: 0,
    read: (text) => (/^\d{1,9}$/.test(text) ? Number(text) : undefined),
    write: String,
    step,
  };
}

const position: Field<number | null> = {
  initial: null,
  read: (text) => (/^\d{1,9}$/.test(text) ? Number(text) : undefined),
  write: (value) => (value === null ? "" : String(value)),
  step: false,
};

const flag: Field<boolean> = {
  initial: false,
  read: (text) => text === "1",
  write: (value) => (value ? "1" : ""),
  step: false,
};

/** Every field of the address, in the order in which it is written. */
const FIELDS = {
  view: choice(VIEWS, "grid", true),
  recording: index(true),
  /** The number of the attention map in the recording, from 0: the "layer" of the report. */
  map: index(true),
  /** The place of the head along the map's axis of heads. */
  head: index(true),
  batch: index(true),
  /** The pinned query (row of the map) and key (column), `null` where none is. */
  query: position,
  key: position,
  pooling: choice(["max", "mean"] as const, "max"),
  scale: choice(["log", "linear"] as const, "log"),
  /** Each row divided by its largest weight. */
  normalised: flag,
} as const;

type Fields = typeof FIELDS;
export type Chosen = { [Name in keyof Fields]: Fields[Name] extends Field<infer T> ? T : never };

export class Selection implements Chosen {
  view = $state<View>(FIELDS.view.initial);
  recording = $state(0);
  map = $state(0);
  head = $state(0);
  batch = $state(0);
  query = $state<number | null>(null);
  key = $state<number | null>(null);
  pooling = $state<Pooling>("max");
  scale = $state<Scale>("log");
  normalised = $state(false);
  /** What one view alone keeps, by `view.name`, such as `grid.order`; kept in the address too. */
  extra = $state<Record<string, string>>({});

  /** Several changes at once: one step for the back button. */
  go(changes: Partial<Chosen>): void {
    Object.assign(this, changes);
  }

  /** The address of this selection: fields that are as they start are left out. */
  write(): string {
    const parts = new URLSearchParams();
    for (const name of names()) {
      const field = FIELDS[name] as Field<unknown>;
      const value = this[name];
      if (value !== field.initial) parts.set(name, field.write(value));
    }
    for (const [name, value] of Object.entries(this.extra)) if (value) parts.set(name, value);
    return parts.toString();
  }

  /** Only what the back button undoes. */
  steps(): string {
    return names()
      .filter((name) => FIELDS[name].step)
      .map((name) => String(this[name]))
      .join(" ");
  }

  read(address: string): void {
    const parts = new URLSearchParams(address);
    for (const name of names()) {
      const field = FIELDS[name] as Field<unknown>;
      const text = parts.get(name);
      const value = text === null ? undefined : field.read(text);
      Object.assign(this, { [name]: value === undefined ? field.initial : value });
      parts.delete(name);
    }
    this.extra = Object.fromEntries(parts);
  }
}

function names(): (keyof Fields)[] {
  return Object.keys(FIELDS) as (keyof Fields)[];
}
