/** Byte pair encoding as SentencePiece does it: of neighbours, those with the best piece merge first. */

import { characterLength } from "./normalizer.js";
import type { Segment } from "./segmentation.js";
import { Kind, type SubwordModel } from "./subword_model.js";
import type { Trie } from "./trie.js";

/** A stretch of text; `size` is 0 once it has become part of the one before. */
interface Symbol {
  start: number;
  size: number;
  previous: number;
  next: number;
  isFixed: boolean;
}

interface Pair {
  left: number;
  right: number;
  size: number;
  score: number;
}

export class BytePairs {
  constructor(
    private readonly model: SubwordModel,
    private readonly trie: Trie,
    private readonly unknownId: number,
    private readonly userDefined: Trie,
  ) {}

  segment(text: Uint8Array): Segment[] {
    const symbols = this.characters(text);
    const agenda = new Agenda();
    const parts = new Map<number, [Symbol, Symbol]>(); // of unused pieces, by id

    const consider = (left: number, right: number): void => {
      if (left < 0 || right < 0 || symbols[left].isFixed || symbols[right].isFixed) return;
      const { start } = symbols[left];
      const size = symbols[left].size + symbols[right].size;
      const id = this.trie.find(text.subarray(start, start + size));
      if (id < 0) return;
      agenda.push({ left, right, size, score: this.model.pieces[id].score });
      if (this.model.pieces[id].kind === Kind.unused) {
        parts.set(id, [{ ...symbols[left] }, { ...symbols[right] }]);
      }
    };

    for (let i = 1; i < symbols.length; i++) consider(i - 1, i);
    for (let pair = agenda.pop(); pair; pair = agenda.pop()) {
      const [left, right] = [symbols[pair.left], symbols[pair.right]];
      if (!left.size || !right.size || left.size + right.size !== pair.size) continue;
      left.size = pair.size;
      left.next = right.next;
      if (right.next >= 0) symbols[right.next].previous = pair.left;
      right.size = 0;
      consider(left.previous, pair.left);
      consider(pair.left, left.next);
    }

    const segments: Segment[] = [];
    const put = (start: number, size: number): void => {
      const found = this.trie.find(text.subarray(start, start + size));
      const inside = parts.get(found);
      if (!inside) {
        segments.push([found < 0 ? this.unknownId : found, start + size]);
        return;
      }
      const [left, right] = inside;
      put(start, left.size);
      put(start + left.size, right.size);
    };
    for (let at = symbols.length ? 0 : -1; at >= 0; at = symbols[at].next) {
      put(symbols[at].start, symbols[at].size);
    }
    return segments;
  }

  private characters(text: Uint8Array): Symbol[] {
    const symbols: Symbol[] = [];
    for (let start = 0; start < text.length; ) {
      const fixed = this.userDefined.longest(text, start);
      const size = fixed || Math.min(characterLength(text[start]), text.length - start);
      const number = symbols.length;
      const next = start + size < text.length ? number + 1 : -1;
      symbols.push({ start, size, previous: number - 1, next, isFixed: fixed > 0 });
      start += size;
    }
    return symbols;
  }
}

/** Pairs, the best first; of equals, the one further left. */
class Agenda {
  private readonly heap: Pair[] = [];

  push(pair: Pair): void {
    const { heap } = this;
    let at = heap.push(pair) - 1;
    for (let above = (at - 1) >> 1; at > 0 && isBefore(pair, heap[above]); above = (at - 1) >> 1) {
      heap[at] = heap[above];
      at = above;
    }
    heap[at] = pair;
  }

  pop(): Pair | undefined {
    const { heap } = this;
    const first = heap[0];
    const last = heap.pop();
    if (!last || !heap.length) return first;
    let at = 0;
    for (let below = 1; below < heap.length; below = 2 * at + 1) {
      if (below + 1 < heap.length && isBefore(heap[below + 1], heap[below])) below++;
      if (!isBefore(heap[below], last)) break;
      heap[at] = heap[below];
      at = below;
    }
    heap[at] = last;
    return first;
  }
}

function isBefore(one: Pair, other: Pair): boolean {
  return one.score > other.score || (one.score === other.score && one.left < other.left);
}
