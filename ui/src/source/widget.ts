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

/** What anywidget gives: messages to the kernel and back. */
export interface WidgetModel {
  send(content: unknown): void;
  on(event: "msg:custom", callback: Listener): void;
  off(event: "msg:custom", callback: Listener): void;
}

type Listener = (content: Reply, buffers: readonly DataView[]) => void;

interface Reply {
  readonly id?: number;
  readonly fields?: unknown;
  readonly arrays?: readonly TableHeading[];
  readonly error?: string;
  readonly code?: FailureCode;
}

interface Waiting {
  resolve(answer: Answer): void;
  reject(error: unknown): void;
}

/** Asks the kernel of a notebook: `{id, name, parameters}` out, the same id back. */
export class WidgetSource implements Source {
  private next = 0;
  private readonly waiting = new Map<number, Waiting>();

  constructor(private readonly model: WidgetModel) {
    model.on("msg:custom", this.receive);
  }

  close(): void {
    this.model.off("msg:custom", this.receive);
    for (const { reject } of this.waiting.values()) reject(new Failure("closed", "gone"));
    this.waiting.clear();
  }

  ask(name: string, parameters: Parameters = {}, signal?: AbortSignal): Promise<Answer> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const id = this.next++;
      this.waiting.set(id, { resolve, reject });
      signal?.addEventListener("abort", () => {
        if (!this.waiting.delete(id)) return;
        this.model.send({ id, cancel: true });
        reject(signal.reason);
      });
      const asked = Object.fromEntries(new URLSearchParams(canonical(parameters)));
      this.model.send({ id, name, parameters: asked });
    });
  }

  private readonly receive: Listener = (reply, buffers) => {
    const waiting = reply.id === undefined ? undefined : this.waiting.get(reply.id);
    if (!waiting || reply.id === undefined) return;
    this.waiting.delete(reply.id);
    if (reply.error !== undefined) {
      waiting.reject(new Failure(reply.error, reply.code ?? "fault"));
      return;
    }
    const arrays: Record<string, ReturnType<typeof table>> = {};
    (reply.arrays ?? []).forEach((heading, at) => {
      const view = buffers[at];
      if (view) arrays[heading.name] = table(heading, copied(view));
    });
    waiting.resolve({ fields: reply.fields ?? {}, arrays });
  };
}

/** A buffer of a message may start anywhere; arrays of 4-byte numbers may not. */
function copied(view: DataView): ArrayBuffer {
  const bytes = new Uint8Array(view.byteLength);
  bytes.set(new Uint8Array(view.buffer, view.byteOffset, view.byteLength));
  return bytes.buffer;
}
