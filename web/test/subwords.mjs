/**
 * node web/test/subwords.mjs MODEL < lines.json > ids.json
 *
 * Reads {"texts": [...], "ids": [[...], ...]}, and writes the ids of the texts and the texts of the ids.
 */

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const source = fileURLToPath(new URL("../src/subwords.ts", import.meta.url));
const { outputFiles } = await build({ entryPoints: [source], bundle: true, format: "esm", write: false });
const code = Buffer.from(outputFiles[0].contents).toString("base64");
const { Subwords } = await import(`data:text/javascript;base64,${code}`);

const subwords = new Subwords(new Uint8Array(readFileSync(process.argv[2])));
const { texts, ids } = JSON.parse(readFileSync(0, "utf8"));
const result = {
  ids: texts.map((text) => subwords.encode(text)),
  texts: ids.map((row) => subwords.decode(row)),
};
process.stdout.write(JSON.stringify(result));
