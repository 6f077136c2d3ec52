/**
 * node web/test/page.mjs < {"url", "lines", "hostile", "spaces"} > what was seen
 *
 * Uses the page as people do. Asks the server itself for `loaded` where the page has all it needs,
 * and for `offline` before the page is opened without a network.
 */

import { readFileSync } from "node:fs";
import { launch, open, translate, translations, violations } from "./browser.mjs";

const { url, lines, hostile, spaces } = JSON.parse(readFileSync(0, "utf8"));
const seen = { errors: [], hosts: [], violations: {} };

const browser = await launch();
const context = await browser.newContext();
await context.addInitScript(() => {
  globalThis.Worker = class extends Worker {
    constructor(...values) {
      super(...values);
      globalThis.worker = this; // for `cancelled`
      globalThis.heard = new Map(); // for `looks`
      this.addEventListener("message", ({ data }) => {
        if (data.kind === "attention") heard.set(data.look.text, data);
      });
    }
  };
});
let page = await context.newPage();
page.on("pageerror", (error) => seen.errors.push(String(error)));
page.on("request", (request) => seen.hosts.push(new URL(request.url()).host));
page.on("dialog", () => seen.errors.push("a dialog"));

await open(page, url);
await page.waitForFunction(() => document.body.dataset.offline);
await fetch(`${url}loaded`);

seen.title = await page.title();
seen.threads = [await threads()];
seen.typed = await byKeyboardAlone(lines[0]);
seen.translations = await translate(page, lines.join("\n"));
seen.looks = await looks();
seen.ended = await cancelled();
seen.hostile = await translate(page, hostile.join("\n"));
seen.spaces = await translate(page, spaces.join("\n"));
seen.elements = await page.evaluate(() =>
  [...new Set([...document.querySelectorAll("#translations *")].map(({ localName }) => localName))].sort(),
);
seen.widest = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);

await fetch(`${url}offline`);
await context.setOffline(true);
await page.close();
page = await context.newPage();
await open(page, url);
seen.threads.push(await threads());
seen.offline = await translate(page, lines.join("\n"));
await page.click("li:nth-child(2) summary");
seen.told = await told();
for (const colorScheme of ["light", "dark"]) {
  await page.emulateMedia({ colorScheme });
  seen.violations[colorScheme] = await violations(page);
}
seen.failure = await failure();
await browser.close();
process.stdout.write(JSON.stringify(seen));

async function threads() {
  return page.evaluate(() => Number(document.body.dataset.threads));
}

/** Types, goes on to the candidates, and opens them, on a phone. */
async function byKeyboardAlone(text) {
  await page.setViewportSize({ width: 320, height: 640 });
  await page.keyboard.type(text);
  await page.waitForFunction(() => document.body.dataset.done);
  await page.keyboard.press("Tab"); // to the button that copies
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  const isOpen = await page.evaluate(() => document.querySelector("details").open);
  if (isOpen) await page.locator("tr[data-ids]").first().waitFor(); // by an event that comes later
  return { isOpen, translations: await translations(page) };
}

/** Opens all lines, and gives what the worker says of each to the page. */
async function looks() {
  await page.evaluate(() => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
  await page.waitForFunction((n) => heard.size === n, lines.length);
  return page.evaluate(() =>
    [...heard.values()].map(({ look, attention }) => ({
      ...look,
      weights: attention.weights.map((row) => [...row]),
      distances: attention.distances.flat().map((row) => [...row]),
    })),
  );
}

/** What is said of a subword that is clicked, of the next one by keyboard, and of the heads. */
async function told() {
  const line = page.locator("li:nth-child(2)");
  const said = [];
  await line.locator("label").first().click();
  said.push(await line.locator(".told").textContent());
  await page.keyboard.press("ArrowRight");
  said.push(await line.locator(".told").textContent());
  const maps = await line.locator("canvas").all();
  const labels = await Promise.all(maps.map((map) => map.getAttribute("aria-label")));
  return { said, labels };
}

/** What the page says when a file does not arrive. */
async function failure() {
  const page = await browser.newPage();
  await page.route("**/model.{tflite,packed}", (route) => route.fulfill({ status: 503 }));
  await page.goto(url);
  const alert = page.locator("[role=alert]:not(:empty)");
  await alert.waitFor();
  return alert.textContent();
}

/** How many lines of a request the worker translates that another one follows at once. */
async function cancelled() {
  return page.evaluate(
    () =>
      new Promise((resolve) => {
        const many = Array.from({ length: 300 }, (_, i) => `line ${i}`);
        const ended = { lines: 0, numbers: [] };
        worker.addEventListener("message", ({ data }) => {
          if (data.kind === "translation" && data.number === 1001 && !ended.lines++) {
            worker.postMessage({ number: 1002, lines: ["another"] });
          }
          if (data.kind !== "done") return;
          ended.numbers.push(data.number);
          resolve(ended);
        });
        worker.postMessage({ number: 1001, lines: many });
      }),
  );
}
