/** What the export says of the model; the build puts it in the place of `SETTINGS`. */
export interface Settings {
  source_language: string | null;
  target_language: string | null;
  max_source_length: number;
  vocabulary_size: number;
  beam_size: number;
  pad_id: number;
  end_id: number;
  /** Sizes of the files by their names, in bytes. */
  files: Record<string, number>;
}

declare const SETTINGS: Settings;

export const settings = SETTINGS;

export const MODEL = "model.tflite";
export const TOKENIZER = "model.tokenizer.model";
