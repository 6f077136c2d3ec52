/** A sentence to its translations, with the model in LiteRT's WebAssembly runtime. */

import { type CompiledModel, loadAndCompile, loadLiteRt, Tensor } from "@litertjs/core";
import { Downloads } from "./download.js";
import { runtimeName, threads } from "./runtime.js";
import { settings, TOKENIZER } from "./settings.js";
import { Subwords } from "./subwords.js";
import { unpack } from "./unpack.js";

export interface Hypothesis {
  text: string;
  /** Log-probability over the length penalty, in nats. */
  score: number;
  /** Subwords, without padding and the end. */
  ids: number[];
}

/** What the model looked at while it wrote a hypothesis. */
export interface Attention {
  /** Subwords that were read, with the end. */
  source: string[];
  /** Subwords that were written, with the end. */
  target: string[];
  /** For each of the target the weights of the source: those that alignments are read from. */
  weights: Float32Array[];
  /** Of the layers of the settings, for each head what each distance scores, -k to k. */
  distances: Float32Array[][];
}

export interface Translation {
  /** Best first, no text twice. */
  hypotheses: Hypothesis[];
  /** Subwords of the source, with the end id, before it was cut. */
  length: number;
  isCut: boolean;
  seconds: number;
}

export class Translator {
  private constructor(
    private readonly model: CompiledModel,
    private readonly subwords: Subwords,
  ) {}

  /** @param tell - is called with the share that has been loaded, 0 to 1. */
  static async load(tell: (share: number) => void): Promise<Translator> {
    const runtime = await runtimeName(threads());
    const downloads = new Downloads([`${runtime}.wasm`, settings.model, TOKENIZER], tell);
    const [model, tokenizer] = await Promise.all([
      downloads.bytes(settings.model),
      downloads.bytes(TOKENIZER),
      start(runtime, downloads),
    ]);
    const compiled = await loadAndCompile(unpack(model), {
      accelerator: "wasm",
      cpuOptions: { numThreads: threads() },
    });
    return new Translator(compiled, new Subwords(tokenizer));
  }

  async translate(text: string): Promise<Translation> {
    const began = performance.now();
    const { max_source_length } = settings;
    const source = this.source(text);
    const hypotheses = await this.search(row(source, max_source_length));
    return {
      hypotheses,
      length: source.length,
      isCut: source.length > max_source_length,
      seconds: (performance.now() - began) / 1000,
    };
  }

  /** @param ids - of a hypothesis of the text. */
  async look(text: string, ids: readonly number[]): Promise<Attention> {
    const { max_source_length, max_target_length, start_id, end_id, layers } = settings;
    const source = this.source(text).slice(0, max_source_length);
    const found = await this.run("attention", {
      source_ids: row(source, max_source_length),
      target_ids: row([start_id, ...ids], max_target_length),
    });
    const weights = rows(found.weights as Float32Array, max_target_length);
    const target = [...ids, end_id];
    return {
      source: source.map((id) => this.subwords.piece(id)),
      target: target.map((id) => this.subwords.piece(id)),
      weights: target.map((_, i) => weights[i].slice(0, source.length)),
      distances: layers.length
        ? rows(found.distances as Float32Array, layers.length).map((layer) => rows(layer, settings.heads))
        : [],
    };
  }

  /** Ids of a text, with the end. */
  private source(text: string): number[] {
    return [...this.subwords.encode(text), settings.end_id];
  }

  private async search(row: Int32Array<ArrayBuffer>): Promise<Hypothesis[]> {
    const found = await this.run("serving_default", { source_ids: row });
    const scores = found.score as Float32Array;
    const ids = rows(found.target_ids as Int32Array, scores.length);
    return Array.from(scores, (score, i) => this.hypothesis(ids[i], score)).filter(
      ({ text }, i, all) => all.findIndex((other) => other.text === text) === i,
    );
  }

  /** The outputs of a signature, copied out of the runtime's memory. */
  private async run(
    signature: string,
    inputs: Record<string, Int32Array<ArrayBuffer>>,
  ): Promise<Record<string, Int32Array | Float32Array>> {
    const given = Object.fromEntries(
      Object.entries(inputs).map(([name, row]) => [name, new Tensor(row, [1, row.length])]),
    );
    const output = await this.model.run(signature, given);
    const found = Object.fromEntries(
      Object.entries(output).map(([name, tensor]) => [
        name,
        tensor.toTypedArray() as Int32Array | Float32Array,
      ]),
    );
    for (const tensor of [...Object.values(given), ...Object.values(output)]) tensor.delete();
    return found;
  }

  private hypothesis(row: Int32Array, score: number): Hypothesis {
    const ids = [...row].filter((id) => id !== settings.pad_id && id !== settings.end_id);
    return { text: this.subwords.decode(ids), score, ids };
  }
}

/** Ids in an array of a fixed length; those that do not fit are left out. */
function row(ids: readonly number[], length: number): Int32Array<ArrayBuffer> {
  const row = new Int32Array(length).fill(settings.pad_id);
  row.set(ids.slice(0, length));
  return row;
}

/** The rows of a matrix. */
function rows<T extends Int32Array | Float32Array>(values: T, number: number): T[] {
  const length = values.length / number;
  return Array.from({ length: number }, (_, i) => values.subarray(i * length, (i + 1) * length) as T);
}

/** Starts the runtime; its loader would fetch its file without a word of progress. */
async function start(runtime: string, downloads: Downloads): Promise<void> {
  // It would wake a graphics processor that nothing here computes on.
  Object.defineProperty(navigator, "gpu", { value: undefined, configurable: true });
  // It would start a thread for each core.
  Object.defineProperty(navigator, "hardwareConcurrency", { value: threads(), configurable: true });
  const wasm = downloads.open(`${runtime}.wasm`, "application/wasm");
  wasm.catch(() => undefined); // is heard below, by whoever awaits it
  const script = new URL(`${runtime}.js`, location.href).href;
  Object.assign(self, {
    Module: {
      mainScriptUrlOrBlob: script, // of the other threads
      instantiateWasm(
        imports: WebAssembly.Imports,
        done: (instance: WebAssembly.Instance, module: WebAssembly.Module) => void,
      ): object {
        WebAssembly.instantiateStreaming(wasm, imports).then(
          ({ instance, module }) => done(instance, module),
          (error: unknown) => setTimeout(() => { throw error; }),
        );
        return {};
      },
    },
  });
  await loadLiteRt(script);
}
