/**
 * node web/test/benchmark.mjs URL THREADS
 *
 * Answers each line of JSON, {"lines": [...]}, with the {"seconds"} that the page takes to translate
 * them; {"first": "..."} with those from navigation to the translation of one line, of a browser that
 * has never seen the page.
 */

import { createInterface } from "node:readline";
import { enter, launch, open } from "./browser.mjs";

const [url, threads] = process.argv.slice(2);
const browser = await launch();
const page = await opened();
let requests = 1e6;

for await (const line of createInterface({ input: process.stdin })) {
  const { lines, first } = JSON.parse(line);
  const seconds = lines ? await page.evaluate(timed, { lines, number: requests++ }) : await start(first);
  console.log(JSON.stringify({ seconds }));
}
await browser.close();

/** The page with as many threads as are asked for: the service worker gives it more than one. */
async function opened() {
  const context = await browser.newContext({ serviceWorkers: threads > 1 ? "allow" : "block" });
  await context.addInitScript(() => {
    globalThis.Worker = class extends Worker {
      constructor(...values) {
        super(...values);
        globalThis.worker = this;
      }
    };
  });
  const page = await context.newPage();
  await open(page, url);
  if (threads > 1) {
    await page.waitForFunction(() => document.body.dataset.offline);
    await open(page, url);
  }
  const found = await page.evaluate(() => document.body.dataset.threads);
  if (found !== threads) throw new Error(`the page has ${found} threads`);
  return page;
}

/** Without the pause that the page waits for a key. */
function timed(request) {
  return new Promise((resolve) => {
    const began = performance.now();
    worker.addEventListener("message", function hear({ data }) {
      if (data.kind !== "done" || data.number !== request.number) return;
      worker.removeEventListener("message", hear);
      resolve((performance.now() - began) / 1000);
    });
    worker.postMessage(request);
  });
}

async function start(text) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const began = performance.now();
  await open(page, url);
  await enter(page, text);
  const seconds = (performance.now() - began) / 1000;
  await context.close();
  return seconds;
}
