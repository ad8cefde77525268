import {
  type Answer,
  Failure,
  type FailureCode,
  type Parameters,
  type Source,
  type TableHeading,
  canonical,
  table,
} from "./source";

const RETRIES = 8;

/** Asks a running `jumok view`; `base` is the page's own folder, which holds the token. */
export class HttpSource implements Source {
  constructor(private readonly base: string) {}

  async ask(name: string, parameters: Parameters = {}, signal?: AbortSignal): Promise<Answer> {
    const query = canonical(parameters);
    const url = `${this.base}api/${name}${query && "?"}${query}`;
    for (let attempt = 0; ; attempt++) {
      const response = await this.fetch(url, signal);
      if (response.status === 503 && attempt < RETRIES) {
        await pause(1000 * Number(response.headers.get("Retry-After") ?? "1"), signal);
        continue;
      }
      if (!response.ok) throw await failure(response);
      if (response.headers.get("Content-Type")?.startsWith("application/json")) {
        return { fields: await response.json(), arrays: {} };
      }
      return unpack(await response.arrayBuffer());
    }
  }

  private async fetch(url: string, signal?: AbortSignal): Promise<Response> {
    try {
      return await fetch(url, { signal: signal ?? null });
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      throw new Failure("jumok no longer answers. If it has ended, start it again and open its new address.", "gone");
    }
  }
}

/** uint32 n, n bytes of JSON, then the arrays: see "On the wire" in QUESTIONS.md. */
export function unpack(bytes: ArrayBuffer): Answer {
  const length = new DataView(bytes).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length))) as {
    fields: unknown;
    arrays: TableHeading[];
  };
  let start = 4 + length;
  const arrays: Record<string, ReturnType<typeof table>> = {};
  for (const heading of head.arrays) {
    const stop = start + 4 * heading.shape.reduce((size, side) => size * side, 1);
    arrays[heading.name] = table(heading, bytes.slice(start, stop));
    start = stop;
  }
  return { fields: head.fields, arrays };
}

async function failure(response: Response): Promise<Failure> {
  const text = await response.text();
  try {
    const found = JSON.parse(text) as { error: string; code: FailureCode };
    if (found.error) return new Failure(found.error, found.code);
  } catch {
    // Not from jumok itself: the text is all that is known.
  }
  return new Failure(text || `${response.status} ${response.statusText}`, "fault");
}

function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
