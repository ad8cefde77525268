/** What one view alone keeps in the address, such as `text.side`. */
import type { Selection } from "./selection.svelte";

/** One of `values`; the first where the address has none of them. */
export function choiceOf<T extends string>(
  selection: Selection,
  name: string,
  values: readonly [T, ...T[]],
): T {
  const text = selection.extra[name];
  return values.find((value) => value === text) ?? values[0];
}

/** Keeps a value; `usual` is left out of the address. */
export function keep(selection: Selection, name: string, value: string, usual = ""): void {
  if (value === (selection.extra[name] ?? usual)) return;
  const { [name]: _, ...others } = selection.extra;
  selection.extra = value === usual ? others : { ...others, [name]: value };
}
