/** A sentence to its translations, with the model in LiteRT's WebAssembly runtime. */

import { type CompiledModel, loadAndCompile, loadLiteRt, Tensor } from "@litertjs/core";
import { Downloads } from "./download.js";
import { runtimeName } from "./runtime.js";
import { MODEL, settings, TOKENIZER } from "./settings.js";
import { Subwords } from "./subwords.js";

export interface Hypothesis {
  text: string;
  /** Log-probability over the length penalty, in nats. */
  score: number;
  /** Subwords, without padding and the end. */
  ids: number[];
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
    const runtime = await runtimeName();
    const downloads = new Downloads([`${runtime}.wasm`, MODEL, TOKENIZER], tell);
    const [model, tokenizer] = await Promise.all([
      downloads.bytes(MODEL),
      downloads.bytes(TOKENIZER),
      start(runtime, downloads),
    ]);
    const compiled = await loadAndCompile(model, { accelerator: "wasm" });
    return new Translator(compiled, new Subwords(tokenizer));
  }

  async translate(text: string): Promise<Translation> {
    const began = performance.now();
    const { max_source_length, pad_id, end_id } = settings;
    const source = [...this.subwords.encode(text), end_id];
    const row = new Int32Array(max_source_length).fill(pad_id);
    row.set(source.slice(0, max_source_length));
    const hypotheses = await this.search(row);
    return {
      hypotheses,
      length: source.length,
      isCut: source.length > max_source_length,
      seconds: (performance.now() - began) / 1000,
    };
  }

  private async search(row: Int32Array<ArrayBuffer>): Promise<Hypothesis[]> {
    const input = new Tensor(row, [1, row.length]);
    const output = await this.model.run({ source_ids: input });
    const ids = output.target_ids.toTypedArray() as Int32Array;
    const scores = output.score.toTypedArray() as Float32Array;
    for (const tensor of [input, ...Object.values(output)]) tensor.delete();
    const length = ids.length / scores.length;
    const found = Array.from(scores, (score, i) =>
      this.hypothesis(ids.subarray(i * length, (i + 1) * length), score),
    );
    return found.filter(({ text }, i) => found.findIndex((other) => other.text === text) === i);
  }

  private hypothesis(row: Int32Array, score: number): Hypothesis {
    const ids = [...row].filter((id) => id !== settings.pad_id && id !== settings.end_id);
    return { text: this.subwords.decode(ids), score, ids };
  }
}

/** Starts the runtime; its loader would fetch its file without a word of progress. */
async function start(runtime: string, downloads: Downloads): Promise<void> {
  // It would wake a graphics processor that nothing here computes on.
  Object.defineProperty(navigator, "gpu", { value: undefined, configurable: true });
  const wasm = downloads.open(`${runtime}.wasm`, "application/wasm");
  wasm.catch(() => undefined); // is heard below, by whoever awaits it
  Object.assign(self, {
    Module: {
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
  await loadLiteRt(new URL(`${runtime}.js`, location.href).href);
}
