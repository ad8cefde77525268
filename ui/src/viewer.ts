/**
 * The one entry. A page starts by itself where it has `<div id="jumok-viewer" data-source=…>`
 * ("server" or "file"); a notebook's widget calls the default export.
 */
import { mount as mountComponent, unmount } from "svelte";

// First: what a component says of itself counts more.
import "./look/jumok.css";
import "./look/data.css";

import App from "./App.svelte";
import { EmbeddedSource } from "./source/embedded";
import { HttpSource } from "./source/http";
import { type Source, fields } from "./source/source";
import { type WidgetModel, WidgetSource } from "./source/widget";
import type { About } from "./state/about";
import { type Address, HashAddress, NoAddress } from "./state/address";
import { Page } from "./state/page.svelte";
import { language } from "./words";

export interface Options {
  readonly address?: Address;
}

/** Shows the page in an element; returns what takes it away again. */
export async function mount(
  element: HTMLElement,
  source: Source,
  { address = new NoAddress() }: Options = {},
): Promise<() => void> {
  const page = new Page(source, await fields<About>(source, "about"));
  const asked = new URLSearchParams(location.search).get("lang");
  page.language = language(asked, navigator.languages);
  const app = mountComponent(App, { target: element, props: { page, address } });
  return () => void unmount(app);
}

const here = document.getElementById("jumok-viewer");
if (here?.dataset.source) {
  const source = here.dataset.source === "file" ? embedded() : new HttpSource("");
  Promise.resolve(source)
    .then((found) => mount(here, found, { address: new HashAddress() }))
    .catch((error: unknown) => {
      here.textContent = error instanceof Error ? error.message : String(error);
    });
}

function embedded(): Promise<EmbeddedSource> {
  return EmbeddedSource.open(document.getElementById("jumok-data")?.textContent ?? "");
}

export default {
  async render({ model, el }: { model: WidgetModel; el: HTMLElement }): Promise<() => void> {
    const source = new WidgetSource(model);
    const end = await mount(el, source);
    return () => {
      end();
      source.close();
    };
  },
};
