/** node web/test/speed.mjs < {"url", "lines"} > {"translations", "seconds"} */

import { readFileSync } from "node:fs";
import { launch, open, translate } from "./browser.mjs";

const { url, lines } = JSON.parse(readFileSync(0, "utf8"));
const browser = await launch();
const page = await browser.newPage();
const seconds = {};
const began = performance.now();
await open(page, url);
await translate(page, lines[0]);
seconds.first = (performance.now() - began) / 1000;
const second = performance.now();
const translations = await translate(page, lines.join("\n"));
seconds.all = (performance.now() - second) / 1000;
await browser.close();
process.stdout.write(JSON.stringify({ translations, seconds }));
