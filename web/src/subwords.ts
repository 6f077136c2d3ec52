/** Text to the ids of subwords and back, as the SentencePiece library does it. */

import { BytePairs } from "./byte_pairs.js";
import { Normalizer } from "./normalizer.js";
import { pieceTrie, type Segment, Unigram, Words } from "./segmentation.js";
import { Kind, Method, readSubwordModel, type SubwordModel } from "./subword_model.js";

const SPACE = "\u2581";

// Once for all: browsers free them late, and a sentence needs many.
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export class Subwords {
  private readonly model: SubwordModel;
  private readonly normalizer: Normalizer;
  private readonly segmenter: { segment(text: Uint8Array): Segment[] };
  private readonly unknownId: number;
  /** Ids of single bytes, and the bytes of those ids. */
  private readonly byteIds: number[] = [];
  private readonly bytes = new Map<number, number>();

  /** @param file - the SentencePiece model: unigram, BPE or words. */
  constructor(file: Uint8Array) {
    const model = (this.model = readSubwordModel(file));
    const ofText: number[] = [Kind.normal, Kind.userDefined, Kind.unused];
    const trie = pieceTrie(model, (kind) => ofText.includes(kind));
    const userDefined = pieceTrie(model, (kind) => kind === Kind.userDefined);
    const unknown = (this.unknownId = model.pieces.findIndex(({ kind }) => kind === Kind.unknown));
    this.normalizer = new Normalizer(model, userDefined);
    this.segmenter =
      model.method === Method.bpe
        ? new BytePairs(model, trie, unknown, userDefined)
        : model.method === Method.word
          ? new Words(trie, unknown)
          : new Unigram(model, trie, unknown);
    model.pieces.forEach(({ text, kind }, id) => {
      if (kind !== Kind.byte) return;
      const byte = Number.parseInt(text.slice(3, 5), 16); // <0x41>
      this.byteIds[byte] = id;
      this.bytes.set(id, byte);
    });
  }

  get size(): number {
    return this.model.pieces.length;
  }

  /** Lone surrogates are read as U+FFFD. */
  encode(text: string): number[] {
    const normalized = this.normalizer.normalize(encoder.encode(text));
    const ids: number[] = [];
    let start = 0;
    let wasUnknown = false;
    for (const [id, end] of this.segmenter.segment(normalized)) {
      const isUnknown = id === this.unknownId;
      if (isUnknown && this.model.byteFallback) {
        for (const byte of normalized.subarray(start, end)) ids.push(this.byteIds[byte]);
      } else if (!(isUnknown && wasUnknown)) {
        ids.push(id); // unknown pieces side by side are one
      }
      wasUnknown = isUnknown;
      start = end;
    }
    return ids;
  }

  /** Wrong ids of single bytes are read as U+FFFD each. */
  decode(ids: readonly number[]): string {
    let text = "";
    let bytes: number[] = [];
    let isFirst = true; // nothing but dropped spaces so far
    let dropped = false;
    const { addDummyPrefix, removeExtraWhitespaces } = this.model;
    for (const id of [...ids, -1]) {
      const byte = this.bytes.get(id);
      if (byte !== undefined) {
        bytes.push(byte);
        continue;
      }
      text += fromUtf8(bytes);
      bytes = [];
      if (id < 0) break;
      if (dropped || text) isFirst = false;
      dropped = false;
      const { text: piece, kind } = this.model.pieces[id];
      if (kind === Kind.control) continue;
      if (kind === Kind.unknown) {
        text += this.model.unknownSurface;
        continue;
      }
      const drops = isFirst && (addDummyPrefix || removeExtraWhitespaces) && piece.startsWith(SPACE);
      dropped = drops && !removeExtraWhitespaces;
      text += (drops ? piece.slice(1) : piece).replaceAll(SPACE, " ");
    }
    return text;
  }

  /** How a subword is written, its leading space as U+2581. */
  piece(id: number): string {
    return this.model.pieces[id].text;
  }
}

/** Each byte that belongs to no character becomes U+FFFD: the platform would make one of several. */
function fromUtf8(bytes: readonly number[]): string {
  let text = "";
  for (let at = 0; at < bytes.length; ) {
    const length = bytes[at] < 0x80 ? 1 : bytes[at] < 0xe0 ? 2 : bytes[at] < 0xf0 ? 3 : 4;
    try {
      text += decoder.decode(Uint8Array.from(bytes.slice(at, at + length)));
      at += length;
    } catch {
      text += "\ufffd";
      at += 1;
    }
  }
  return text;
}
