/** What the page is told first: the answer to `about`; QUESTIONS.md says what each field means. */

export interface MapAbout {
  /** Module path of the attention. */
  readonly name: string;
  readonly batch: number;
  readonly heads: number;
  readonly queries: number;
  readonly keys: number;
  /** The model's numbers of the heads along the map's axis. */
  readonly head_numbers: readonly number[];
  readonly kind: "self" | "cross";
  readonly causal: boolean;
  /** Whose tokens stand along rows and columns; `null` where nobody knows. */
  readonly query_text: number | null;
  readonly key_text: number | null;
  /** Row i is token i + first_query of its text. */
  readonly first_query: number;
  /** Column j is token j + first_key. */
  readonly first_key: number;
  readonly stack: number | null;
  readonly levels: number;
  /** The finest level of tiles that this page has. */
  readonly finest: number;
  /** Heads that the map can show; `null` for all. */
  readonly held: readonly number[] | null;
  readonly scale: number;
  readonly softcap: number | null;
  readonly has_bias: boolean;
  readonly has_sinks: boolean;
  readonly has_values: boolean;
  readonly has_norms: boolean;
  readonly norms_note: string;
  readonly width: number;
  readonly value_width: number;
}

export interface TextAbout {
  readonly tokens: number;
  readonly words: number;
  readonly batch: number;
  readonly labels: "text" | "ids" | "positions";
}

export interface StackAbout {
  readonly name: string;
  readonly maps: readonly number[];
  readonly text: number;
  readonly causal: boolean;
  readonly has_norms: boolean;
  readonly norms_note: string;
}

export interface Recorded {
  readonly title: string;
  readonly model: string;
  readonly fingerprint: string;
  readonly without_attention: string;
  readonly texts: readonly TextAbout[];
  readonly maps: readonly MapAbout[];
  readonly stacks: readonly StackAbout[];
  readonly passages: readonly string[];
}

export interface About {
  readonly version: string;
  readonly tile: number;
  readonly transport: "server" | "widget" | "file";
  readonly recordings: readonly Recorded[];
  readonly compared: {
    readonly same_model: boolean;
    readonly same_tokens: boolean;
    readonly same_shape: boolean;
  } | null;
  readonly left_out: readonly string[];
}
