/** The translations on the page: a line each, its hypotheses inside. What comes from outside is text. */

import { settings } from "./settings.js";
import type { Hypothesis, Translation } from "./translator.js";

export class Results {
  /** @param list - an `<ol>` */
  constructor(private readonly list: HTMLElement) {}

  /** Leaves no more than so many lines; they show what they did until `show` replaces it. */
  begin(lines: number): void {
    while (this.list.childElementCount > lines) this.list.lastElementChild?.remove();
    this.list.setAttribute("aria-busy", String(lines > 0));
  }

  show(line: number, translation: Translation): void {
    let item = this.list.children[line];
    if (!item) {
      item = document.createElement("li");
      item.append(element("p", "", "translation"), element("p", "", "note"), details());
      this.list.append(item);
    }
    const [text, note, more] = item.children;
    text.textContent = translation.hypotheses[0].text;
    setLanguage(text);
    note.textContent = translation.isCut
      ? `Only the first ${settings.max_source_length} of ${translation.length} subwords were read.`
      : "";
    more.children[0].textContent = summary(translation);
    more.children[1].replaceChildren(table(translation.hypotheses));
  }

  end(): void {
    this.list.removeAttribute("aria-busy");
  }

  text(): string {
    return [...this.list.querySelectorAll(".translation")].map((p) => p.textContent).join("\n");
  }
}

export function count(number: number, one: string): string {
  return `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;
}

function summary({ hypotheses, length, seconds }: Translation): string {
  const best = hypotheses[0].score.toFixed(3);
  const found = `${count(length, "subword")}, score ${best}, ${count(hypotheses.length, "candidate")}`;
  return `${seconds.toFixed(2)} s, ${found}`;
}

function table(hypotheses: readonly Hypothesis[]): HTMLElement {
  const table = document.createElement("table");
  table.append(
    element("caption", "Score: log-probability over the length penalty. The nearest to 0 is the best."),
    row("th", "Score", "Translation"),
  );
  for (const { score, text, ids } of hypotheses) {
    const line = row("td", score.toFixed(3), text);
    Object.assign(line.dataset, { score, ids: ids.join(" ") });
    setLanguage(line.children[1]);
    table.append(line);
  }
  return table;
}

function row(cell: "th" | "td", ...texts: string[]): HTMLElement {
  const row = document.createElement("tr");
  row.append(...texts.map((text) => element(cell, text)));
  if (cell === "th") for (const heading of row.children) heading.setAttribute("scope", "col");
  return row;
}

function details(): HTMLElement {
  const details = document.createElement("details");
  details.append(document.createElement("summary"), element("div", "", "candidates"));
  return details;
}

function element(name: string, text: string, style = ""): HTMLElement {
  const element = document.createElement(name);
  element.textContent = text;
  if (style) element.className = style;
  return element;
}

function setLanguage(element: Element): void {
  if (settings.target_language) element.setAttribute("lang", settings.target_language);
  element.setAttribute("dir", "auto");
}
