/** A question that follows the state: asked again when it changes, the older one given up. */

export class Asked<T> {
  value = $state.raw<T | null>(null);
  error = $state.raw<Error | null>(null);
  /** Whether an answer is on its way; `value` is then still that of the question before. */
  waiting = $state(false);
  private tries = $state(0);

  constructor(work: () => ((signal: AbortSignal) => Promise<T>) | null) {
    $effect(() => {
      void this.tries;
      const ask = work();
      if (!ask) {
        this.value = null;
        this.error = null;
        this.waiting = false;
        return;
      }
      const stop = new AbortController();
      this.waiting = true;
      ask(stop.signal).then(
        (value) => {
          if (stop.signal.aborted) return;
          this.value = value;
          this.error = null;
          this.waiting = false;
        },
        (error: unknown) => {
          if (stop.signal.aborted) return;
          this.error = error instanceof Error ? error : new Error(String(error));
          this.value = null;
          this.waiting = false;
        },
      );
      return () => stop.abort();
    });
  }

  again(): void {
    this.tries += 1;
  }
}

/**
 * Call it while a component starts. `work` reads the state that the question is made of and gives
 * the asking itself, or `null` where there is nothing to ask.
 */
export function asked<T>(work: () => ((signal: AbortSignal) => Promise<T>) | null): Asked<T> {
  return new Asked(work);
}
