/**
 * node build.mjs SITE
 *
 * Builds the page in a folder that has the model, its tokenizer and their `settings.json` already,
 * which becomes part of the scripts.
 */

import { createHash } from "node:crypto";
import { cpSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const site = process.argv[2];

const settingsFile = join(site, "settings.json");
const settings = JSON.parse(readFileSync(settingsFile, "utf8"));
rmSync(settingsFile);

cpSync(join(here, "static"), site, { recursive: true });
// Without relaxed SIMD the older one; files for WebGPU stay out.
const wasm = join(dirname(createRequire(import.meta.url).resolve("@litertjs/core")), "..", "wasm");
for (const name of ["", "_threaded", "_compat"].map((kind) => `litert_wasm${kind}_internal`)) {
  for (const ending of ["js", "wasm"]) {
    cpSync(join(wasm, `${name}.${ending}`), join(site, "runtime", `${name}.${ending}`));
  }
}

await bundle({ "page": "page", "worker": "worker" }, {});
await bundle({ "sw": "service_worker" }, { VERSION: JSON.stringify(version()) });

/** Bundles of sources by the names of the scripts. */
async function bundle(sources, constants) {
  await build({
    entryPoints: Object.entries(sources).map(([out, source]) => ({
      in: join(here, "src", `${source}.ts`),
      out,
    })),
    outdir: site,
    bundle: true,
    minify: true,
    format: "iife",
    target: "es2022",
    define: { SETTINGS: JSON.stringify({ ...settings, files: sizes() }), ...constants },
    logLevel: "warning",
  });
}

function files() {
  return readdirSync(site, { recursive: true })
    .map((name) => name.replaceAll("\\", "/"))
    .filter((name) => statSync(join(site, name)).isFile())
    .sort();
}

function sizes() {
  return Object.fromEntries(files().map((name) => [name, statSync(join(site, name)).size]));
}

/** A digest of all files. */
function version() {
  const digest = createHash("sha256");
  for (const name of files()) digest.update(name).update(readFileSync(join(site, name)));
  return digest.digest("hex").slice(0, 16);
}
