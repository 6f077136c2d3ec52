/**
 * node web/test/update.mjs < {"url", "directory"} > what was seen
 *
 * Visits the site, changes files of the directory that is served, as another export does, and visits
 * again; and visits a page of somebody else's below it, `other/`.
 */

import { readFileSync, writeFileSync } from "node:fs";
import { launch, open } from "./browser.mjs";

const { url, directory } = JSON.parse(readFileSync(0, "utf8"));
const CHANGED = ["index.html", "page.js", "style.css"];

const browser = await launch();
const context = await browser.newContext();
const first = await visit();
const other = await context.newPage();
await other.goto(`${url}other/`);
const isolated = [await isIsolated(first), await isIsolated(other)];
const [cache] = await first.evaluate(() => caches.keys());
await first.close();

const version = cache.split(" ").at(-1);
change("sw.js", (text) => text.replaceAll(version, "another"));
for (const name of CHANGED) change(name, (text) => text.replace("translat", "TRANSLAT"));
const second = await visit();
const kept = await second.evaluate(async (names) => {
  const registration = await navigator.serviceWorker.getRegistration();
  await registration.update();
  while (!registration.waiting) await new Promise((later) => setTimeout(later, 100));
  const key = (await caches.keys()).find((name) => name.endsWith(" another"));
  const cache = await caches.open(key);
  const texts = names.map(async (name) => (await cache.match(name)).text());
  return (await Promise.all(texts)).map((text) => text.includes("TRANSLAT"));
}, CHANGED.map((name) => (name === "index.html" ? "./" : name)));
await browser.close();
console.log(JSON.stringify({ isolated, kept }));

async function visit() {
  const page = await context.newPage();
  await open(page, url);
  await page.waitForFunction(() => document.body.dataset.offline);
  return page;
}

function isIsolated(page) {
  return page.evaluate(() => fetch(location).then(({ headers }) => headers.has("Cross-Origin-Embedder-Policy")));
}

function change(name, how) {
  const path = `${directory}/${name}`;
  const before = readFileSync(path, "utf8");
  const after = how(before);
  if (after === before) throw new Error(`${name} is as it was`);
  writeFileSync(path, after);
}
