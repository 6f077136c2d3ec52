/** What the export says of the model; the build puts it in the place of `SETTINGS`. */
export interface Settings {
  /** The name of its file. */
  model: string;
  source_language: string | null;
  target_language: string | null;
  max_source_length: number;
  max_target_length: number;
  vocabulary_size: number;
  beam_size: number;
  pad_id: number;
  start_id: number;
  end_id: number;
  heads: number;
  max_relative_position: number;
  /** The attentions whose scores know positions, "encoder_0/self_attention". */
  layers: string[];
  /** Sizes of the files by their names, in bytes. */
  files: Record<string, number>;
}

declare const SETTINGS: Settings;

export const settings = SETTINGS;

export const TOKENIZER = "model.tokenizer.model";
