/**
 * Normalized text to pieces, as SentencePiece does it. A segment is the id of a piece and where it
 * ends, in bytes.
 */

import { characterLength, ESCAPED_SPACE } from "./normalizer.js";
import { Kind, type SubwordModel } from "./subword_model.js";
import { Trie } from "./trie.js";

export type Segment = [id: number, end: number];

/** The pieces that text can have, by their bytes. */
export function pieceTrie(model: SubwordModel, isIn: (kind: number) => boolean): Trie {
  const trie = new Trie();
  const encoder = new TextEncoder();
  model.pieces.forEach(({ text, kind }, id) => {
    if (isIn(kind)) trie.add(encoder.encode(text), id);
  });
  return trie;
}

/** The most probable segmentation under a unigram model (Kudo 2018), found by Viterbi's algorithm. */
export class Unigram {
  private readonly largest: number;
  private readonly unknownScore: number;

  constructor(
    private readonly model: SubwordModel,
    private readonly trie: Trie,
    private readonly unknownId: number,
  ) {
    const normal = model.pieces.filter(({ kind }) => kind === Kind.normal);
    const smallest = normal.reduce((least, { score }) => Math.min(least, score), 3.4028234663852886e38);
    this.largest = normal.reduce((most, { score }) => Math.max(most, score), 1.1754943508222875e-38);
    this.unknownScore = Math.fround(smallest - 10);
  }

  segment(text: Uint8Array): Segment[] {
    const size = text.length;
    const scores = new Float32Array(size + 1);
    const ids = new Int32Array(size + 1);
    const starts = new Int32Array(size + 1).fill(-1);

    function consider(start: number, end: number, id: number, sum: number): void {
      const score = Math.fround(sum); // as SentencePiece rounds: what ties there ties here
      if (starts[end] >= 0 && score <= scores[end]) return;
      scores[end] = score;
      starts[end] = start;
      ids[end] = id;
    }

    for (let start = 0; start < size; ) {
      const one = Math.min(characterLength(text[start]), size - start);
      let hasCharacter = false;
      let node: number = Trie.root;
      for (let at = start; at < size; at++) {
        node = this.trie.step(node, text[at]);
        if (node < 0) break;
        const id = this.trie.at(node);
        if (id < 0) continue;
        const { kind, score } = this.model.pieces[id];
        if (kind === Kind.unused) continue;
        const length = at + 1 - start;
        const own = kind === Kind.userDefined ? length * this.largest - 0.1 : score;
        consider(start, at + 1, id, scores[start] + own);
        hasCharacter ||= length === one;
      }
      if (!hasCharacter) {
        consider(start, start + one, this.unknownId, scores[start] + this.unknownScore);
      }
      start += one;
    }

    const segments: Segment[] = [];
    for (let end = size; end > 0; end = starts[end]) segments.push([ids[end], end]);
    return segments.reverse();
  }
}

/** Words between spaces. */
export class Words {
  constructor(
    private readonly trie: Trie,
    private readonly unknownId: number,
  ) {}

  segment(text: Uint8Array): Segment[] {
    const segments: Segment[] = [];
    for (let start = 0; start < text.length; ) {
      let end = start + 1;
      while (end < text.length && !isSpace(text, end)) end++;
      const id = this.trie.find(text.subarray(start, end));
      segments.push([id < 0 ? this.unknownId : id, end]);
      start = end;
    }
    return segments;
  }
}

function isSpace(text: Uint8Array, at: number): boolean {
  return ESCAPED_SPACE.every((byte, i) => text[at + i] === byte);
}
