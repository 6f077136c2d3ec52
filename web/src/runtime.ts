/** Which of LiteRT's WebAssembly files this browser runs. */

import { supportsFeature } from "@litertjs/core";

export const RUNTIME = "runtime";

/** A step's matrices are small; more threads than two have not been measured. */
const MOST_THREADS = 2;

/** How many threads compute: one, unless the page is isolated from other origins. */
export function threads(): number {
  return self.crossOriginIsolated ? Math.min(MOST_THREADS, navigator.hardwareConcurrency) : 1;
}

/** The name of the file, without its ending; it is there once as a script and once as WebAssembly. */
export async function runtimeName(threads: number): Promise<string> {
  const kind = (await supportsFeature("relaxedSimd")) ? (threads > 1 ? "_threaded" : "") : "_compat";
  return `${RUNTIME}/litert_wasm${kind}_internal`;
}
