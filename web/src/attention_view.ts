/** What the model looked at for each subword of a translation, and which distances its heads prefer. */

import { element, setLanguage } from "./elements.js";
import { settings } from "./settings.js";
import type { Attention } from "./translator.js";

const SPACE = "\u2581";
const TOLD = 3; // subwords of the source, those that were looked at most
const LEAST = 0.05; // of the weight, below which a subword is not told

/** @param line - makes names of radio buttons differ from those of other lines. */
export function attentionView(attention: Attention, line: number): HTMLElement[] {
  const source = sourceSubwords(attention.source);
  const told = element("p", "", "told");
  told.setAttribute("aria-live", "polite");
  const choose = (subword: number): void => {
    const weights = attention.weights[subword];
    source.show(weights);
    told.textContent = sentence(attention, subword);
  };
  choose(0);
  const view = [targetSubwords(attention.target, line, choose), source.list, told];
  return attention.distances.length ? [...view, distances(attention.distances)] : view;
}

/** Radio buttons: a click, or the arrow keys, choose one. */
function targetSubwords(
  pieces: readonly string[],
  line: number,
  choose: (subword: number) => void,
): HTMLElement {
  const set = element("fieldset", "", "subwords");
  set.append(element("legend", "What each subword looked at: choose one."));
  const labels = names(pieces).map((name, i) => {
    const label = element("label");
    const radio = element("input", "", "unseen");
    Object.assign(radio, { type: "radio", name: `subword-${line}`, checked: i === 0 });
    radio.addEventListener("change", () => choose(i));
    const subword = element("span", name, style(pieces, i));
    setLanguage(subword, settings.target_language);
    label.append(radio, subword);
    return label;
  });
  set.append(...words(pieces, labels, "div"));
  return set;
}

/** The subwords of the source, each below a bar as high as its weight. */
function sourceSubwords(pieces: readonly string[]): {
  list: HTMLElement;
  show: (weights: Float32Array) => void;
} {
  const list = element("ul", "", "source");
  setLanguage(list, settings.source_language);
  const bars = pieces.map(() => element("span", "", "bar"));
  const subwords = names(pieces).map((name, i) => {
    const subword = element("span", "", `subword ${style(pieces, i)}`);
    subword.append(bars[i], element("span", name));
    return subword;
  });
  list.append(...words(pieces, subwords, "li"));
  const show = (weights: Float32Array): void =>
    bars.forEach((bar, i) => bar.style.setProperty("--weight", weights[i].toFixed(3)));
  return { list, show };
}

function sentence({ source, target, weights }: Attention, subword: number): string {
  const words = names(source);
  const most = [...weights[subword].entries()]
    .sort(([, a], [, b]) => b - a)
    .slice(0, TOLD)
    .filter(([, weight], i) => !i || weight >= LEAST)
    .map(([i, weight]) => `“${words[i]}” ${Math.round(100 * weight)}%`);
  return `“${names(target)[subword]}” looked at ${most.join(", ")}.`;
}

/** How subwords are shown; the last of a side is its end. */
function names(pieces: readonly string[]): string[] {
  return pieces.map((piece, i) =>
    i === pieces.length - 1 ? "end" : piece.replace(SPACE, "").replaceAll(SPACE, " ") || SPACE,
  );
}

function style(pieces: readonly string[], i: number): string {
  return i === pieces.length - 1 ? "end" : "";
}

/** Puts the elements of the subwords of a word into one. */
function words(
  pieces: readonly string[],
  subwords: readonly HTMLElement[],
  name: "div" | "li",
): HTMLElement[] {
  const words: HTMLElement[] = [];
  subwords.forEach((subword, i) => {
    const begins = i === 0 || i === pieces.length - 1 || pieces[i].startsWith(SPACE);
    if (begins) words.push(element(name, "", "word"));
    words[words.length - 1].append(subword);
  });
  return words;
}

/** A heat map for each layer: a row is a head, a column a distance from -k to k. */
function distances(layers: readonly Float32Array[][]): HTMLElement {
  const section = element("div", "", "distances");
  const centred = layers.map((heads, i) => heads.map((scores) => lessMean(used(scores, i))));
  const highest = Math.max(...centred.flat().map((scores) => Math.max(...scores.map(Math.abs))));
  const maps = element("div", "", "maps");
  centred.forEach((heads, i) => maps.append(heatMap(settings.layers[i], heads, highest)));
  section.append(
    element(
      "p",
      "Which distances the heads prefer: what positions add to the scores (Shaw et al. 2018, Eq. 5), " +
        "as a mean over this sentence. A row is a head, a column a distance, from subwords before on " +
        "the left to those after on the right. Blue is more, orange less than the head's mean.",
      "note",
    ),
    maps,
  );
  return section;
}

function heatMap(layer: string, heads: readonly Float32Array[], highest: number): HTMLElement {
  const k = settings.max_relative_position;
  const preferred = heads.map((scores) => signed(scores.indexOf(Math.max(...scores)) - k));
  const name = layer.replace(/_(\d+)\/.*/, (_, number: string) => ` layer ${Number(number) + 1}`);
  const canvas = element("canvas");
  canvas.width = heads[0].length;
  canvas.height = heads.length;
  const said = preferred.map((distance, head) => `head ${head + 1} ${distance}`).join(", ");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${name}, the distance with the highest score: ${said}`);
  paint(canvas, heads, highest);
  const scale = element("p", "", "scale");
  scale.setAttribute("aria-hidden", "true");
  const ends = new Set([-k, 0, heads[0].length - 1 - k]);
  scale.append(...[...ends].map((distance) => element("span", signed(distance))));
  const figure = element("figure");
  const caption = element("figcaption", `${name}, highest at ${preferred.join(", ")}`);
  caption.setAttribute("aria-hidden", "true"); // the label of the picture says so, too
  figure.append(canvas, scale, caption);
  return figure;
}

/** In colours that let the page shine through where a score is that of all distances. */
function paint(
  canvas: HTMLCanvasElement,
  heads: readonly Float32Array[],
  highest: number,
): void {
  const pixels = heads.flatMap((scores) =>
    Array.from(scores, (score) => [
      ...(score > 0 ? [31, 110, 190] : [214, 110, 20]),
      highest ? 255 * Math.sqrt(Math.abs(score) / highest) : 0, // the root, to see small ones, too
    ]),
  );
  const data = Uint8ClampedArray.from(pixels.flat());
  canvas.getContext("2d")?.putImageData(new ImageData(data, canvas.width), 0, 0);
}

/** A decoder sees nothing that comes after, so that those distances mean nothing there. */
function used(scores: Float32Array, layer: number): Float32Array {
  const isDecoder = settings.layers[layer].startsWith("decoder");
  return isDecoder ? scores.subarray(0, settings.max_relative_position + 1) : scores;
}

function lessMean(scores: Float32Array): Float32Array {
  const mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
  return scores.map((score) => score - mean);
}

function signed(distance: number): string {
  return distance > 0 ? `+${distance}` : String(distance).replace("-", "−");
}
