/** The views, in the order of their tabs: one component each. */
import type { Component } from "svelte";

import type { View } from "../state/selection.svelte";
import Compare from "./Compare.svelte";
import Flow from "./Flow.svelte";
import Grid from "./Grid.svelte";
import Heads from "./Heads.svelte";
import Map from "./Map.svelte";
import Segments from "./Segments.svelte";
import Steps from "./Steps.svelte";
import Text from "./Text.svelte";

export const COMPONENTS: Record<View, Component> = {
  grid: Grid,
  map: Map,
  text: Text,
  steps: Steps,
  flow: Flow,
  heads: Heads,
  segments: Segments,
  compare: Compare,
};
