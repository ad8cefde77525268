import { afterEach, describe, expect, it, vi } from "vitest";

import { HttpSource, unpack } from "../../src/source/http";
import { Failure, canonical } from "../../src/source/source";
import { type WidgetModel, WidgetSource } from "../../src/source/widget";

/** An answer on the wire, as Python writes it. */
function packed(): ArrayBuffer {
  const head = {
    fields: { exact: true },
    arrays: [
      { name: "values", shape: [1, 2], type: "float32" },
      { name: "ranks", shape: [2], type: "int32" },
    ],
  };
  let text = JSON.stringify(head);
  text += " ".repeat((4 - (text.length % 4)) % 4);
  const bytes = new ArrayBuffer(4 + text.length + 16);
  const view = new DataView(bytes);
  view.setUint32(0, text.length, true);
  new Uint8Array(bytes, 4).set(new TextEncoder().encode(text));
  view.setFloat32(4 + text.length, 0.25, true);
  view.setFloat32(8 + text.length, -Infinity, true);
  view.setInt32(12 + text.length, 7, true);
  view.setInt32(16 + text.length, -1, true);
  return bytes;
}

afterEach(() => vi.unstubAllGlobals());

describe("over HTTP", () => {
  it("arrays follow their heading", () => {
    const { fields, arrays } = unpack(packed());
    expect(fields).toEqual({ exact: true });
    expect([...(arrays.values?.values ?? [])]).toEqual([0.25, -Infinity]);
    expect(arrays.values?.shape).toEqual([1, 2]);
    expect([...(arrays.ranks?.values ?? [])]).toEqual([7, -1]);
  });

  it("a question is a path below the page's own", async () => {
    const get = vi.fn(async () => new Response(packed()));
    vi.stubGlobal("fetch", get);
    await new HttpSource("").ask("tile", { y: 2, x: 1, map: 0 });
    expect(get).toHaveBeenCalledWith("api/tile?map=0&x=1&y=2", expect.anything());
  });

  it("a busy server is asked again", async () => {
    const answers = [
      new Response("", { status: 503, headers: { "Retry-After": "0" } }),
      Response.json({ a: 1 }),
    ];
    vi.stubGlobal("fetch", async () => answers.shift());
    expect((await new HttpSource("").ask("about")).fields).toEqual({ a: 1 });
  });

  it("an error says what Python said", async () => {
    const said = { error: "map 9: there are 3", code: "question" };
    vi.stubGlobal("fetch", async () => Response.json(said, { status: 400 }));
    const failed = new HttpSource("").ask("tile");
    await expect(failed).rejects.toMatchObject({ message: said.error, code: "question" });
  });

  it("a server that is gone is no riddle", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("Failed to fetch")));
    await expect(new HttpSource("").ask("about")).rejects.toMatchObject({ code: "gone" });
  });
});

class Kernel implements WidgetModel {
  readonly sent: unknown[] = [];
  private listener: Parameters<WidgetModel["on"]>[1] = () => {};
  send(content: unknown): void {
    this.sent.push(content);
  }
  on(_: "msg:custom", callback: Parameters<WidgetModel["on"]>[1]): void {
    this.listener = callback;
  }
  off(): void {
    this.listener = () => {};
  }
  reply(...message: Parameters<typeof this.listener>): void {
    this.listener(...message);
  }
}

describe("through a notebook's kernel", () => {
  it("the answer with the same number is the answer", async () => {
    const kernel = new Kernel();
    const source = new WidgetSource(kernel);
    const first = source.ask("row", { map: 1 });
    const second = source.ask("about");
    expect(kernel.sent).toEqual([
      { id: 0, name: "row", parameters: { map: "1" } },
      { id: 1, name: "about", parameters: {} },
    ]);
    kernel.reply({ id: 1, fields: { version: "1" }, arrays: [] }, []);
    const bytes = new Uint8Array([9, 0, 0, 128, 63]); // 1.0, not where numbers of 4 bytes begin
    const arrays = [{ name: "weights", shape: [1], type: "float32" as const }];
    kernel.reply({ id: 0, fields: {}, arrays }, [new DataView(bytes.buffer, 1)]);
    expect((await second).fields).toEqual({ version: "1" });
    expect([...((await first).arrays.weights?.values ?? [])]).toEqual([1]);
  });

  it("a question that is taken back is told to the kernel", async () => {
    const kernel = new Kernel();
    const stop = new AbortController();
    const asked = new WidgetSource(kernel).ask("tile", {}, stop.signal);
    stop.abort();
    await expect(asked).rejects.toMatchObject({ name: "AbortError" });
    expect(kernel.sent.at(-1)).toEqual({ id: 0, cancel: true });
    kernel.reply({ id: 0, fields: {} }, []); // too late: nobody waits
  });

  it("an error is a failure", async () => {
    const kernel = new Kernel();
    const asked = new WidgetSource(kernel).ask("tile");
    kernel.reply({ id: 0, error: "no such tile", code: "question" }, []);
    await expect(asked).rejects.toBeInstanceOf(Failure);
  });
});

it("the same parameters are written the same way", () => {
  expect(canonical({ b: "x y&z", a: 1 })).toBe("a=1&b=x%20y%26z");
});
