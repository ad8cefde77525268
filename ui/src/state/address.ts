/** Where the selection is written down: the page's own address, or nowhere in a notebook. */

export interface Address {
  read(): string;
  write(text: string, step: boolean): void;
  /** What the browser's tab and history say of it. */
  name(title: string): void;
  /** Calls back when the reader goes back, forward, or edits the address; returns the end of it. */
  watch(changed: (text: string) => void): () => void;
}

/** The part of the URL after `#`: it works for a server and for a file, and is never sent. */
export class HashAddress implements Address {
  private waiting: ReturnType<typeof setTimeout> | undefined;

  read(): string {
    return location.hash.slice(1);
  }

  write(text: string, step: boolean): void {
    clearTimeout(this.waiting);
    if (text === this.read()) return;
    const url = `${location.pathname}${location.search}#${text}`;
    if (step) history.pushState(null, "", url);
    // Browsers allow about 100 changes in ten seconds; panning makes more.
    else this.waiting = setTimeout(() => history.replaceState(null, "", url), 200);
  }

  name(title: string): void {
    document.title = title;
  }

  watch(changed: (text: string) => void): () => void {
    const listener = (): void => {
      clearTimeout(this.waiting);
      changed(this.read());
    };
    addEventListener("popstate", listener);
    addEventListener("hashchange", listener);
    return () => {
      clearTimeout(this.waiting);
      removeEventListener("popstate", listener);
      removeEventListener("hashchange", listener);
    };
  }
}

/** A notebook's address is not ours to change. */
export class NoAddress implements Address {
  read(): string {
    return "";
  }
  write(): void {}
  name(): void {}
  watch(): () => void {
    return () => {};
  }
}
