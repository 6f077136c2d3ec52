/**
 * Text as SentencePiece normalizes it, in UTF-8: by the rules in the model's file, which are NFKC
 * for a model of this project, and in its white space.
 *
 * The rules are a double array (Darts) of what is replaced, each with the place of what replaces
 * it in a block of strings that end with a zero byte.
 */

import type { SubwordModel } from "./subword_model.js";
import type { Trie } from "./trie.js";

const SPACE = 0x20;
/** U+2581, which stands for a space in pieces. */
export const ESCAPED_SPACE = Uint8Array.of(0xe2, 0x96, 0x81);
const ONE_SPACE = Uint8Array.of(SPACE);

/** Bytes of the character that begins with a byte. */
export function characterLength(byte: number): number {
  if (byte < 0xc0) return 1;
  if (byte < 0xe0) return 2;
  return byte < 0xf0 ? 3 : 4;
}

export class Normalizer {
  private readonly units: Uint32Array;
  private readonly replacements: Uint8Array;
  private readonly space: Uint8Array;

  /** @param kept - user-defined pieces, which no rule touches. */
  constructor(
    private readonly model: SubwordModel,
    private readonly kept: Trie,
  ) {
    const { rules } = model;
    const size = rules.length ? new DataView(rules.buffer, rules.byteOffset).getUint32(0, true) : 0;
    this.units = new Uint32Array(rules.slice(4, 4 + size).buffer);
    this.replacements = rules.subarray(4 + size);
    this.space = model.escapeWhitespaces ? ESCAPED_SPACE : ONE_SPACE;
  }

  /** @param text - well-formed UTF-8. */
  normalize(text: Uint8Array): Uint8Array {
    const { removeExtraWhitespaces, addDummyPrefix } = this.model;
    const result = new Bytes(text.length + ESCAPED_SPACE.length);
    let afterSpace = removeExtraWhitespaces;
    let isEmpty = true; // but for white space in front
    for (let at = 0; at < text.length; ) {
      const [piece, length] = this.prefix(text, at);
      at += length;
      if (isEmpty && removeExtraWhitespaces && piece.length === 1 && piece[0] === SPACE) continue;
      if (isEmpty && addDummyPrefix) result.append(this.space);
      isEmpty = false;
      let from = 0;
      while (afterSpace && piece[from] === SPACE) from++;
      if (from === piece.length) continue;
      for (const byte of piece.subarray(from)) {
        if (byte === SPACE) result.append(this.space);
        else result.push(byte);
      }
      afterSpace = removeExtraWhitespaces && piece[piece.length - 1] === SPACE;
    }
    if (removeExtraWhitespaces) result.trimEnd(this.space);
    return result.all();
  }

  /** What the text at a position begins with, normalized, and its length before. */
  private prefix(text: Uint8Array, at: number): [Uint8Array, number] {
    const kept = this.kept.longest(text, at);
    if (kept) return [text.subarray(at, at + kept), kept];
    const [length, place] = this.rule(text, at);
    if (!length) {
      const one = characterLength(text[at]);
      return [text.subarray(at, at + one), one];
    }
    return [this.replacements.subarray(place, this.replacements.indexOf(0, place)), length];
  }

  /** The length of the longest rule that fits, 0 if none does, and where its replacement begins. */
  private rule(text: Uint8Array, from: number): [number, number] {
    let length = 0;
    let place = 0;
    if (!this.units.length) return [length, place];
    let position = offset(this.units[0]);
    for (let at = from; at < text.length; at++) {
      position ^= text[at];
      const unit = this.units[position];
      if ((unit & 0x800000ff) !== text[at]) break;
      position ^= offset(unit);
      if ((unit >>> 8) & 1) {
        length = at + 1 - from;
        place = this.units[position] & 0x7fffffff;
      }
    }
    return [length, place];
  }
}

/** How far the children of a unit of the double array are. */
function offset(unit: number): number {
  return (unit >>> 10) << ((unit & 0x200) >>> 6);
}

/** Bytes that become more. */
class Bytes {
  private bytes: Uint8Array;
  private length = 0;

  constructor(capacity: number) {
    this.bytes = new Uint8Array(capacity);
  }

  push(byte: number): void {
    if (this.length === this.bytes.length) {
      const larger = new Uint8Array(2 * this.length);
      larger.set(this.bytes);
      this.bytes = larger;
    }
    this.bytes[this.length++] = byte;
  }

  append(bytes: Uint8Array): void {
    for (const byte of bytes) this.push(byte);
  }

  trimEnd(ending: Uint8Array): void {
    const ends = (): boolean =>
      this.length >= ending.length &&
      ending.every((byte, i) => byte === this.bytes[this.length - ending.length + i]);
    while (ends()) this.length -= ending.length;
  }

  all(): Uint8Array {
    return this.bytes.subarray(0, this.length);
  }
}
