/** Debian's Chromium, or the one that CHROMIUM names, and what tests do with the page in it. */

import axe from "axe-core";
import { chromium } from "playwright-core";

export async function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    // Nothing of a browser's own that asks for a network.
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
}

/** Opens the page, and waits until it can translate. */
export async function open(page, url) {
  page.setDefaultTimeout(300_000); // of a machine with much else to do
  await page.goto(url);
  await page.waitForFunction(() => document.body?.dataset.ready);
}

/** Puts text in, and waits until all of it is translated. */
export async function enter(page, text) {
  const before = await page.evaluate(() => document.body.dataset.done);
  await page.fill("#source", text);
  await page.waitForFunction((done) => document.body.dataset.done !== done, before, { timeout: 0 });
}

export async function translate(page, text) {
  await enter(page, text);
  return translations(page);
}

/** What the page shows: for each line, once opened, the text, and the hypotheses with their ids and scores. */
export async function translations(page) {
  return page.evaluate(async () => {
    const shown = [];
    for (const item of document.querySelectorAll("#translations > li")) {
      const more = item.querySelector("details");
      await toggled(more, true);
      shown.push({
        text: item.querySelector(".translation").textContent,
        note: item.querySelector(".note").textContent,
        hypotheses: [...item.querySelectorAll("tr[data-ids]")].map((row) => ({
          text: row.children[1].textContent,
          score: Number(row.dataset.score),
          ids: row.dataset.ids.split(" ").filter(Boolean).map(Number),
        })),
      });
      await toggled(more, false);
    }
    return shown;

    function toggled(details, open) {
      if (details.open === open) return undefined;
      details.open = open;
      return new Promise((resolve) => details.addEventListener("toggle", resolve, { once: true }));
    }
  });
}

/** Rules of accessibility that the page breaks, as axe-core sees it. */
export async function violations(page) {
  // Not as a script of the page, whose policy would not let it in.
  await page.evaluate(axe.source);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
}
