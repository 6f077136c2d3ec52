/** The page: what is typed goes to the worker, what comes back is shown. */

import type { Reply, Request } from "./messages.js";
import { count, Results } from "./results.js";
import { settings } from "./settings.js";

const PAUSE = 200; // milliseconds without a key, after which lines are translated
const SPOKEN = 1000; // characters, beyond which a screen reader is not told the translation
// A character that is not white space to Python, for whose lines a blank one is none.
const SOMETHING = /[^\p{Z}\t-\r\x1c-\x1f\x85]/u;

const source = byId<HTMLTextAreaElement>("source");
const status = byId("status");
const bar = byId<HTMLProgressElement>("bar");
const copy = byId<HTMLButtonElement>("copy");
const spoken = byId("spoken");
const worker = new Worker("worker.js");
const results = new Results(byId("translations"), (look) => worker.postMessage(look));

let newest: Request = { number: 0, lines: [] };
let typing = 0;
let isReady = false;

worker.onmessage = ({ data }: MessageEvent<Reply>): void => hear(data);
worker.onerror = (event): void => fail(event.message || "the worker cannot be loaded");
source.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(ask, PAUSE);
});
copy.addEventListener("click", () => {
  navigator.clipboard.writeText(results.text()).then(
    () => say("Copied."),
    () => say("The browser does not allow copying."),
  );
});
addEventListener("pageshow", ask); // the browser may have kept what was typed
nameLanguages();

function ask(): void {
  const lines = source.value.split("\n").filter((line) => SOMETHING.test(line));
  if (lines.length === newest.lines.length && lines.every((line, i) => line === newest.lines[i])) {
    return;
  }
  newest = { number: newest.number + 1, lines };
  results.begin(lines.length);
  byId("failure").textContent = "";
  copy.disabled = true;
  if (isReady && lines.length) say("Translating…");
  worker.postMessage(newest);
}

function hear(reply: Reply): void {
  switch (reply.kind) {
    case "loading":
      bar.value = reply.share;
      break;
    case "ready":
      isReady = true;
      bar.hidden = true;
      document.body.dataset.ready = "yes";
      document.body.dataset.threads = String(reply.threads);
      say("Ready. Nothing that you type leaves this device.");
      keepForOffline();
      break;
    case "attention":
      results.showAttention(reply.look, reply.attention);
      break;
    case "failure":
      fail(reply.message);
      break;
    default:
      if (reply.number === newest.number) showProgress(reply);
  }
}

function showProgress(reply: Extract<Reply, { number: number }>): void {
  const { length } = newest.lines;
  if (reply.kind === "translation") {
    results.show(reply.line, newest.lines[reply.line], reply.translation);
    bar.hidden = length === 1;
    bar.value = (reply.line + 1) / length;
    return;
  }
  results.end();
  bar.hidden = true;
  copy.disabled = !length;
  const text = results.text();
  spoken.textContent = text.length <= SPOKEN ? text : "";
  say(length ? `${count(length, "line")} translated.` : "Ready.");
  document.body.dataset.done = String(reply.number);
}

function say(text: string): void {
  status.textContent = text;
}

function fail(message: string): void {
  bar.hidden = true;
  results.end();
  byId("failure").textContent = isReady
    ? `Translating has failed: ${message}`
    : `The translator cannot be started: ${message}`;
  say("");
}

/** After the first translation can be made: the files come out of the browser's own cache. */
function keepForOffline(): void {
  navigator.serviceWorker?.register("sw.js").then(
    () => navigator.serviceWorker.ready.then(() => (document.body.dataset.offline = "yes")),
    () => undefined, // without it the page needs its server: that is all
  );
}

function nameLanguages(): void {
  const { source_language, target_language } = settings;
  const [from, to] = [nameOf(source_language, "Text"), nameOf(target_language, "Translation")];
  byId("source-name").textContent = from;
  byId("target-name").textContent = to;
  if (source_language) source.lang = source_language;
  if (target_language) spoken.lang = target_language;
  if (source_language && target_language) {
    byId("title").textContent = document.title = `${from} to ${to}`;
  }
}

function nameOf(code: string | null, otherwise: string): string {
  if (!code) return otherwise;
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code) ?? code;
  } catch {
    return code; // not a language that the browser knows
  }
}

function byId<T extends HTMLElement = HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}
