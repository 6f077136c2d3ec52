/** What the page and its worker say to each other. */

import type { Translation } from "./translator.js";

/** Lines to translate, in the place of those that were asked for before. */
export interface Request {
  number: number;
  lines: string[];
}

export type Reply =
  | { kind: "loading"; share: number }
  | { kind: "ready" }
  | { kind: "translation"; number: number; line: number; translation: Translation }
  | { kind: "done"; number: number }
  | { kind: "failure"; message: string };
