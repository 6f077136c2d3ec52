/** What the page and its worker say to each other. */

import type { Attention, Translation } from "./translator.js";

/** Lines to translate, in the place of those that were asked for before. */
export interface Request {
  number: number;
  lines: string[];
}

/** A line and the ids of its translation, to be told what the model looked at. */
export interface Look {
  text: string;
  ids: number[];
}

export type Reply =
  | { kind: "loading"; share: number }
  | { kind: "ready"; threads: number }
  | { kind: "translation"; number: number; line: number; translation: Translation }
  | { kind: "done"; number: number }
  | { kind: "attention"; look: Look; attention: Attention }
  | { kind: "failure"; message: string };
