/** Keeps the site's files, so that it opens without a network. */

import { RUNTIME, runtimeName } from "./runtime.js";
import { settings } from "./settings.js";

/** Of all files; another export is another version. */
declare const VERSION: string;

const worker = self as unknown as ServiceWorkerGlobalScope;
// Other sites may lie in other folders of the same origin.
const PREFIX = `tf_relpos ${worker.registration.scope} `;
const CACHE = PREFIX + VERSION;
const INDEX = "index.html";

worker.addEventListener("install", (event) => event.waitUntil(keep()));
worker.addEventListener("activate", (event) => event.waitUntil(takeOver()));
worker.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method === "GET" && url.href.startsWith(worker.registration.scope)) {
    event.respondWith(answer(event.request, url));
  }
});

async function keep(): Promise<void> {
  const runtime = await runtimeName();
  const names = Object.keys(settings.files).filter(
    (name) => !name.startsWith(`${RUNTIME}/`) || name.startsWith(`${runtime}.`),
  );
  const cache = await caches.open(CACHE);
  await cache.addAll(names.map((name) => (name === INDEX ? "./" : name)));
}

async function takeOver(): Promise<void> {
  const old = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== CACHE);
  await Promise.all(old.map((name) => caches.delete(name)));
  await worker.clients.claim();
}

async function answer(request: Request, url: URL): Promise<Response> {
  const cache = await caches.open(CACHE);
  const name = url.pathname.endsWith(`/${INDEX}`) ? new URL("./", url) : url;
  return (await cache.match(name, { ignoreSearch: true })) ?? fetch(request);
}
