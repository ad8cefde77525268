/** What every view needs, handed down by Svelte's context: `const page = usePage()`. */
import { getContext, setContext } from "svelte";

import type { Source } from "../source/source";
import { type Language, WORDS, type Words } from "../words";
import type { About, MapAbout, Recorded } from "./about";
import { Labels } from "./labels";
import { type Measures, Report } from "./report.svelte";
import { Selection } from "./selection.svelte";
import type { Theme } from "./theme";

const KEY = Symbol("page");

export class Page {
  /**
   * Tells the elements of two widgets in one notebook apart: by chance, since each widget may have
   * loaded this module for itself.
   */
  readonly id = `jumok-${Math.random().toString(36).slice(2, 10)}`;
  readonly selection = new Selection();
  language = $state<Language>("en");
  theme = $state<Theme>("system");
  /** Whether dark colours are shown now, after the system was asked. */
  dark = $state(false);
  readonly words: Words = $derived(WORDS[this.language]);

  constructor(
    readonly source: Source,
    readonly about: About,
  ) {}

  /** The recording that is looked at; numbers out of range count as the first. */
  readonly recorded: Recorded = $derived.by(() => {
    const { recordings } = this.about;
    const found = recordings[this.selection.recording] ?? recordings[0];
    if (!found) throw new Error("no recording to show");
    return found;
  });

  /** The map that is looked at. */
  readonly map: MapAbout = $derived.by(() => {
    const found = this.recorded.maps[this.selection.map] ?? this.recorded.maps[0];
    if (!found) throw new Error("no attention map to show");
    return found;
  });

  /**
   * An address may be of another recording: numbers that this one does not have become the nearest
   * that it has, so that what is shown and what is asked for are the same.
   */
  settle(): void {
    const { selection } = this;
    if (!this.about.recordings[selection.recording]) selection.recording = 0;
    const maps = this.about.recordings[selection.recording]?.maps ?? [];
    if (!maps[selection.map]) selection.map = Math.max(0, maps.length - 1);
    const map = maps[selection.map];
    if (!map) return;
    selection.head = Math.min(selection.head, map.heads - 1);
    selection.batch = Math.min(selection.batch, map.batch - 1);
    if ((selection.query ?? 0) >= map.queries) selection.query = null;
    if ((selection.key ?? 0) >= map.keys) selection.key = null;
  }

  private readonly known = new Map<string, Labels>();

  /** Labels of one text of a recording, fetched in chunks and kept. */
  labels(recording: number, text: number, batch: number): Labels {
    const name = `${recording} ${text} ${batch}`;
    let found = this.known.get(name);
    if (!found) {
      found = new Labels(this.source, recording, text, batch);
      this.known.set(name, found);
    }
    return found;
  }

  private readonly reports = new Map<string, Report>();

  /** The report on the heads of a recording; views share it. */
  report(recording: number, measures: Measures): Report {
    const recorded = this.about.recordings[recording];
    if (!recorded) throw new Error(`no recording ${recording}`);
    const name = `${recording} ${measures}`;
    let found = this.reports.get(name);
    if (!found || found.failure) {
      found = new Report(this.source, recording, measures, recorded);
      this.reports.set(name, found);
    }
    return found;
  }

  /** The label of a token, or its position where nobody knows the text. */
  label(side: "query" | "key", position: number, arrived?: () => void): string {
    const { recording, batch } = this.selection;
    const text = side === "query" ? this.map.query_text : this.map.key_text;
    if (text === null) return String(position);
    const token = position + (side === "query" ? this.map.first_query : this.map.first_key);
    return this.labels(recording, text, batch).at(token, arrived) ?? "";
  }
}

export function providePage(page: Page): Page {
  return setContext(KEY, page);
}

export function usePage(): Page {
  return getContext<Page>(KEY);
}
