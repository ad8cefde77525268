import type { Labels } from "../../state/labels";

/**
 * Tokens at which a text begins, upper and lower case alike; it may run over several tokens, and
 * over the border of two chunks of labels.
 */
export async function find(labels: Labels, tokens: number, wanted: string): Promise<number[]> {
  const needle = written(wanted).toLowerCase();
  const found: number[] = [];
  let carried = ""; // the end of what was read before, in case the text runs on
  let starts: { at: number; token: number }[] = [];
  for await (const chunk of labels.chunks(tokens)) {
    let all = carried;
    chunk.labels.forEach((label, index) => {
      starts.push({ at: all.length, token: chunk.start + index });
      all += written(label).toLowerCase();
    });
    let place = all.indexOf(needle);
    let next = 0;
    while (place >= 0) {
      while ((starts[next + 1]?.at ?? Infinity) <= place) next++;
      const token = starts[next]?.token;
      if (token !== undefined && found.at(-1) !== token && (found.at(-1) ?? -1) < token) {
        found.push(token);
      }
      place = all.indexOf(needle, place + 1);
    }
    const keep = Math.max(0, all.length - needle.length);
    const firstKept = Math.max(0, starts.findLastIndex(({ at }) => at <= keep));
    const from = starts[firstKept]?.at ?? 0;
    carried = all.slice(from);
    starts = starts.slice(firstKept).map(({ at, token }) => ({ at: at - from, token }));
  }
  return found;
}

/** Labels show spaces and line ends by signs; what is looked for is typed with plain ones. */
function written(label: string): string {
  return label.replaceAll("␣", " ").replaceAll("⏎", "\n").replaceAll("⇥", "\t");
}
