/** The words of the page, by part; each file holds English and Korean side by side. */
import * as compare from "./compare";
import * as flow from "./flow";
import * as grid from "./grid";
import * as heads from "./heads";
import * as map from "./map";
import * as measures from "./measures";
import * as segments from "./segments";
import * as shell from "./shell";
import * as steps from "./steps";
import * as text from "./text";

export const LANGUAGES = ["en", "ko"] as const;
export type Language = (typeof LANGUAGES)[number];

const parts = { compare, flow, grid, heads, map, measures, segments, shell, steps, text };

export type Words = { [Part in keyof typeof parts]: (typeof parts)[Part]["en"] };

function spoken(language: Language): Words {
  return Object.fromEntries(
    Object.entries(parts).map(([name, part]) => [name, part[language]]),
  ) as Words;
}

export const WORDS: Record<Language, Words> = { en: spoken("en"), ko: spoken("ko") };

/** The language asked for (`?lang=ko`), else the first of the browser's that we speak. */
export function language(asked: string | null, browser: readonly string[]): Language {
  for (const tag of [asked ?? "", ...browser]) {
    const found = LANGUAGES.find((one) => tag.toLowerCase().split("-")[0] === one);
    if (found) return found;
  }
  return "en";
}
