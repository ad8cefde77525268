/** The one seam between the page and Python; the questions are described in QUESTIONS.md. */

export type Parameters = Readonly<Record<string, string | number>>;

/** Numbers in row-major order. */
export interface Table<Values = Float32Array | Int32Array> {
  readonly shape: readonly number[];
  readonly type: "float32" | "int32";
  readonly values: Values;
}

export interface Answer {
  /** A JSON object; each question says what is in it. */
  readonly fields: unknown;
  readonly arrays: Readonly<Record<string, Table>>;
}

/** A running server, a notebook's kernel, or the page's own file. */
export interface Source {
  /** Rejects with a `Failure` that says why, or with the signal's reason once it is aborted. */
  ask(name: string, parameters?: Parameters, signal?: AbortSignal): Promise<Answer>;
}

export type FailureCode =
  | "question"
  | "unknown"
  | "forbidden"
  | "busy"
  | "unable"
  | "left_out"
  | "gone"
  | "fault";

/** Why there is no answer; the message is for people. */
export class Failure extends Error {
  override readonly name = "Failure";
  constructor(
    message: string,
    readonly code: FailureCode,
  ) {
    super(message);
  }
}

/** The fields of an answer that has no arrays. */
export async function fields<T>(
  source: Source,
  name: string,
  parameters?: Parameters,
  signal?: AbortSignal,
): Promise<T> {
  return (await source.ask(name, parameters, signal)).fields as T;
}

export function float32(answer: Answer, name: string): Table<Float32Array> {
  const found = answer.arrays[name];
  if (!(found?.values instanceof Float32Array)) throw new Failure(`no ${name} came`, "fault");
  return found as Table<Float32Array>;
}

export function int32(answer: Answer, name: string): Table<Int32Array> {
  const found = answer.arrays[name];
  if (!(found?.values instanceof Int32Array)) throw new Failure(`no ${name} came`, "fault");
  return found as Table<Int32Array>;
}

/** The same parameters always give the same text: sorted by name, percent-encoded. */
export function canonical(parameters: Parameters = {}): string {
  return Object.keys(parameters)
    .sort()
    .map((key) => `${encodeURIComponent(key)}=${encodeURIComponent(String(parameters[key]))}`)
    .join("&");
}

/** Whether the question was taken back: nothing to tell anybody. */
export function aborted(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

export interface TableHeading {
  readonly name: string;
  readonly shape: readonly number[];
  readonly type: "float32" | "int32";
}

/** The numbers under a heading; bytes are little-endian, as all that runs a browser is. */
export function table(heading: TableHeading, bytes: ArrayBuffer): Table {
  const Kind = heading.type === "int32" ? Int32Array : Float32Array;
  return { shape: heading.shape, type: heading.type, values: new Kind(bytes) };
}
