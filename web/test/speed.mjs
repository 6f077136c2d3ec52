/** node web/test/speed.mjs < {"url", "lines"} > {"translations", "seconds", "megabytes"} */

import { readFileSync } from "node:fs";
import { enter, launch, open, translations } from "./browser.mjs";

const { url, lines } = JSON.parse(readFileSync(0, "utf8"));
const browser = await launch();
const page = await browser.newPage();
const debug = await page.context().newCDPSession(page);
const seconds = {};
const megabytes = [];

let began = performance.now();
await open(page, url);
await enter(page, lines[0]);
seconds.untilFirst = passed();

await enter(page, lines.slice(0, 100).join("\n"));
megabytes.push(await resident());
began = performance.now();
await enter(page, lines.join("\n"));
seconds.ofOthers = passed(); // the first hundred are known by now
megabytes.push(await resident());
const result = { translations: await translations(page), seconds, megabytes };
await browser.close();
process.stdout.write(JSON.stringify(result));

function passed() {
  return Math.round(performance.now() - began) / 1000;
}

/** Memory of the process that has the page and its worker, without the page's garbage. */
async function resident() {
  await debug.send("HeapProfiler.collectGarbage");
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  const sizes = processInfo
    .filter(({ type }) => type === "renderer")
    .map(({ id }) => /VmRSS:\s*(\d+)/.exec(readFileSync(`/proc/${id}/status`, "utf8"))[1]);
  return Math.round(Math.max(...sizes.map(Number)) / 1024);
}
