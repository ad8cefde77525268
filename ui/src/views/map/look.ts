import type { Look } from "./axes";

/** The page's own colours and fonts, for what is drawn on a canvas. */
export function lookOf(element: Element): Look {
  const style = getComputedStyle(element);
  const value = (name: string): string => style.getPropertyValue(name).trim();
  return {
    ink: value("--ink"),
    soft: value("--ink-soft"),
    line: value("--line-strong"),
    paper: value("--paper"),
    sunken: value("--sunken"),
    accent: value("--accent"),
    onAccent: value("--on-accent"),
    sans: value("--sans"),
    mono: value("--mono"),
  };
}
