/** Translates beside the page, so that typing never waits. A new request ends the one before. */

import type { Look, Reply, Request } from "./messages.js";
import { threads } from "./runtime.js";
import { type Translation, Translator } from "./translator.js";

const tell = (reply: Reply): void => postMessage(reply);

/** Lines that were translated: most of those that are asked for next are the same. */
const known = new Map<string, Translation>();
const MOST_KNOWN = 1000;

/** One for all lines: browsers free channels late. */
const turns = new MessageChannel();
turns.port1.start();

let newest = 0;

const loading = Translator.load((share) => tell({ kind: "loading", share }));
loading.then(() => tell({ kind: "ready", threads: threads() }), fail);

onmessage = ({ data }: MessageEvent<Request | Look>): void => {
  if ("ids" in data) {
    look(data).catch(fail);
    return;
  }
  newest = data.number;
  answer(data).catch(fail);
};
onunhandledrejection = (event): void => fail(event.reason);

async function answer({ number, lines }: Request): Promise<void> {
  const translator = await loading;
  for (const [line, text] of lines.entries()) {
    await othersTurn();
    if (number !== newest) return;
    const translation = known.get(text) ?? (await translator.translate(text));
    remember(text, translation);
    tell({ kind: "translation", number, line, translation });
  }
  tell({ kind: "done", number });
}

async function look(look: Look): Promise<void> {
  const attention = await (await loading).look(look.text, look.ids);
  tell({ kind: "attention", look, attention });
}

function remember(text: string, translation: Translation): void {
  known.delete(text); // the newest comes last
  known.set(text, translation);
  for (const oldest of known.keys()) {
    if (known.size <= MOST_KNOWN) break;
    known.delete(oldest);
  }
}

/** Lets a message arrive that has been sent meanwhile. */
function othersTurn(): Promise<void> {
  return new Promise((resolve) => {
    turns.port1.addEventListener("message", () => resolve(), { once: true });
    turns.port2.postMessage(null);
  });
}

function fail(error: unknown): void {
  tell({ kind: "failure", message: error instanceof Error ? error.message : String(error) });
}
