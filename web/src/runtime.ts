/** Which of LiteRT's WebAssembly files this browser runs. */

import { supportsFeature } from "@litertjs/core";

export const RUNTIME = "runtime";

/** The name of the file, without its ending; it is there once as a script and once as WebAssembly. */
export async function runtimeName(): Promise<string> {
  const isNew = await supportsFeature("relaxedSimd");
  return `${RUNTIME}/litert_wasm${isNew ? "" : "_compat"}_internal`;
}
