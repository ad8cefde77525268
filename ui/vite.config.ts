import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

// One ES module and one style sheet: the page, the notebook widget and the single file share them.
export default defineConfig({
  plugins: [svelte({ compilerOptions: { css: "external", runes: true } })],
  build: {
    outDir: process.env.JUMOK_ASSETS ?? "../src/jumok/view/assets",
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    reportCompressedSize: false,
    lib: {
      entry: "src/viewer.ts",
      formats: ["es"],
      fileName: () => "viewer.js",
      cssFileName: "viewer",
    },
  },
  test: { include: ["tests/**/*.test.ts"] },
});
