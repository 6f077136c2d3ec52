/** A SentencePiece model, read from its file. */

import { fields } from "./proto.js";

/** `ModelProto.SentencePiece.Type` */
export const Kind = {
  normal: 1,
  unknown: 2,
  control: 3,
  userDefined: 4,
  unused: 5,
  byte: 6,
} as const;

/** `TrainerSpec.ModelType` */
export const Method = { unigram: 1, bpe: 2, word: 3 } as const;

export interface Piece {
  text: string;
  score: number;
  kind: number;
}

export interface SubwordModel {
  pieces: Piece[];
  method: number;
  byteFallback: boolean;
  /** What stands for an unknown piece in text. */
  unknownSurface: string;
  /** Rules of normalization, compiled by SentencePiece; may be empty. */
  rules: Uint8Array;
  addDummyPrefix: boolean;
  removeExtraWhitespaces: boolean;
  escapeWhitespaces: boolean;
}

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const text = (bytes: Uint8Array): string => decoder.decode(bytes);

export function readSubwordModel(file: Uint8Array): SubwordModel {
  const model: SubwordModel = {
    pieces: [],
    method: Method.unigram,
    byteFallback: false,
    unknownSurface: " \u2047 ",
    rules: new Uint8Array(0),
    addDummyPrefix: true,
    removeExtraWhitespaces: true,
    escapeWhitespaces: true,
  };
  for (const { number, bytes } of fields(file)) {
    if (number === 1) model.pieces.push(readPiece(bytes));
    if (number === 2) readTrainerSpec(model, bytes);
    if (number === 3) readNormalizerSpec(model, bytes);
  }
  return model;
}

function readPiece(message: Uint8Array): Piece {
  const piece: Piece = { text: "", score: 0, kind: Kind.normal };
  for (const { number, value, bytes } of fields(message)) {
    if (number === 1) piece.text = text(bytes);
    if (number === 2) piece.score = value;
    if (number === 3) piece.kind = value;
  }
  return piece;
}

function readTrainerSpec(model: SubwordModel, message: Uint8Array): void {
  for (const { number, value, bytes } of fields(message)) {
    if (number === 3) model.method = value;
    if (number === 35) model.byteFallback = value !== 0;
    if (number === 44) model.unknownSurface = text(bytes);
  }
}

function readNormalizerSpec(model: SubwordModel, message: Uint8Array): void {
  for (const { number, value, bytes } of fields(message)) {
    if (number === 2) model.rules = bytes;
    if (number === 3) model.addDummyPrefix = value !== 0;
    if (number === 4) model.removeExtraWhitespaces = value !== 0;
    if (number === 5) model.escapeWhitespaces = value !== 0;
  }
}
