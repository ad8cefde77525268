export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

/** Whether the system asks for dark colours, now and whenever it changes its mind. */
export function systemIsDark(changed: (dark: boolean) => void): () => void {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const listener = (): void => changed(query.matches);
  query.addEventListener("change", listener);
  listener();
  return () => query.removeEventListener("change", listener);
}
