import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

// One ES module and one style sheet: the page, the notebook widget and the single file share them.
export default defineConfig({
  plugins: [svelte({ compilerOptions: { css: "external", runes: true } })],
  build: {
    outDir: "dist", // build.py moves it into the package, file by file in one step each
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
    rolldownOptions: {
      input: { viewer: "src/viewer.ts" },
      preserveEntrySignatures: "strict",
      output: {
        entryFileNames: "[name].js",
        assetFileNames: "viewer[extname]",
        codeSplitting: false,
      },
    },
  },
  test: { include: ["tests/**/*.test.ts"] },
});
