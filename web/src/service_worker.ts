/**
 * Keeps the site's files, so that it opens without a network, and isolates the page from other
 * origins, as browsers want it of pages that share memory between threads.
 */

import { RUNTIME, runtimeName } from "./runtime.js";
import { settings } from "./settings.js";

/** Of all files; another export is another version. */
declare const VERSION: string;

const worker = self as unknown as ServiceWorkerGlobalScope;
// Other sites may lie in other folders of the same origin.
const PREFIX = `tf_relpos ${worker.registration.scope} `;
const CACHE = PREFIX + VERSION;
const INDEX = "index.html";
// Others may lie in the same folder: they remain as their server sends them.
const OWN = new Set(
  ["", ...Object.keys(settings.files)].map(
    (name) => new URL(name, worker.registration.scope).pathname,
  ),
);

worker.addEventListener("install", (event) => event.waitUntil(keep()));
worker.addEventListener("activate", (event) => event.waitUntil(takeOver()));
worker.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method === "GET" && url.origin === location.origin && OWN.has(url.pathname)) {
    event.respondWith(answer(event.request, url));
  }
});

async function keep(): Promise<void> {
  // One has been loaded, the other is for later visits; a page inside of another one is not isolated.
  const runtimes = await Promise.all([1, navigator.hardwareConcurrency].map(runtimeName));
  const names = Object.keys(settings.files).filter(
    (name) => !name.startsWith(`${RUNTIME}/`) || runtimes.some((own) => name.startsWith(`${own}.`)),
  );
  const cache = await caches.open(CACHE);
  // The browser may still hold files of the version before: the server is asked whether they are new.
  const fresh = { cache: "no-cache" } as const;
  await cache.addAll(names.map((name) => new Request(name === INDEX ? "./" : name, fresh)));
}

async function takeOver(): Promise<void> {
  const old = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== CACHE);
  await Promise.all(old.map((name) => caches.delete(name)));
  await worker.clients.claim();
}

async function answer(request: Request, url: URL): Promise<Response> {
  const cache = await caches.open(CACHE);
  const name = url.pathname.endsWith(`/${INDEX}`) ? new URL("./", url) : url;
  return isolated((await cache.match(name, { ignoreSearch: true })) ?? (await fetch(request)));
}

function isolated(response: Response): Response {
  if (response.type !== "basic") return response; // a redirection
  const headers = new Headers(response.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  const { status, statusText } = response;
  return new Response(response.body, { headers, status, statusText });
}
