/** The translations on the page: a line each, its hypotheses inside. What comes from outside is text. */

import { attentionView } from "./attention_view.js";
import { element, setLanguage } from "./elements.js";
import type { Look } from "./messages.js";
import { settings } from "./settings.js";
import type { Attention, Hypothesis, Translation } from "./translator.js";

/** A text that was translated. */
interface Line {
  text: string;
  translation: Translation;
}

export class Results {
  private readonly lines: Line[] = [];

  /**
   * @param list - an `<ol>`
   * @param ask - is called when someone wants to know what the model looked at.
   */
  constructor(
    private readonly list: HTMLElement,
    private readonly ask: (look: Look) => void,
  ) {}

  /** Leaves no more than so many lines; they show what they did until `show` replaces it. */
  begin(lines: number): void {
    while (this.list.childElementCount > lines) this.list.lastElementChild?.remove();
    this.list.setAttribute("aria-busy", String(lines > 0));
  }

  show(line: number, text: string, translation: Translation): void {
    this.lines[line] = { text, translation };
    const item = this.list.children[line] ?? this.add(line);
    const [best, note, more] = item.children;
    best.textContent = translation.hypotheses[0].text;
    setLanguage(best, settings.target_language);
    note.textContent = translation.isCut
      ? `Only the first ${settings.max_source_length} of ${translation.length} subwords were read.`
      : "";
    more.children[0].textContent = summary(translation);
    this.fill(line, more as HTMLDetailsElement);
  }

  /** Shows it below the translations that it is of, if they are still there. */
  showAttention(look: Look, attention: Attention): void {
    for (const [line, item] of [...this.list.children].entries()) {
      const { text, ids } = this.look(line);
      const more = item.children[2] as HTMLDetailsElement;
      if (more.open && text === look.text && String(ids) === String(look.ids)) {
        more.children[2].replaceChildren(...attentionView(attention, line));
      }
    }
  }

  end(): void {
    this.list.removeAttribute("aria-busy");
  }

  private add(line: number): Element {
    const item = element("li");
    const more = element("details");
    more.append(element("summary"), element("div", "", "candidates"), element("div", "", "attention"));
    more.addEventListener("toggle", () => this.fill(line, more));
    item.append(element("p", "", "translation"), element("p", "", "note"), more);
    this.list.append(item);
    return item;
  }

  /** What a line has inside is made when it is opened: of many lines it would take much memory. */
  private fill(line: number, more: HTMLDetailsElement): void {
    const [, candidates, attention] = more.children;
    candidates.replaceChildren();
    attention.replaceChildren();
    if (!more.open) return;
    candidates.append(table(this.lines[line].translation.hypotheses));
    this.ask(this.look(line));
  }

  private look(line: number): Look {
    const { text, translation } = this.lines[line];
    return { text, ids: translation.hypotheses[0].ids };
  }

  text(): string {
    return [...this.list.querySelectorAll(".translation")].map((p) => p.textContent).join("\n");
  }
}

export function count(number: number, one: string): string {
  return `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;
}

function summary({ hypotheses, length, seconds }: Translation): string {
  const best = shown(hypotheses[0].score);
  const found = `${count(length, "subword")}, score ${best}, ${count(hypotheses.length, "candidate")}`;
  return `${seconds.toFixed(2)} s, ${found}`;
}

function shown(score: number): string {
  return score.toFixed(3).replace("-", "−");
}

function table(hypotheses: readonly Hypothesis[]): HTMLElement {
  const table = element("table");
  table.append(
    element("caption", "Score: log-probability over the length penalty. The nearest to 0 is the best."),
    row("th", "Score", "Translation"),
  );
  for (const { score, text, ids } of hypotheses) {
    const line = row("td", shown(score), text);
    Object.assign(line.dataset, { score, ids: ids.join(" ") });
    setLanguage(line.children[1], settings.target_language);
    table.append(line);
  }
  return table;
}

function row(cell: "th" | "td", ...texts: string[]): HTMLElement {
  const row = element("tr");
  row.append(...texts.map((text) => element(cell, text)));
  if (cell === "th") for (const heading of row.children) heading.setAttribute("scope", "col");
  return row;
}
