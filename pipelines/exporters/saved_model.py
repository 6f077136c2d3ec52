"""A SavedModel for TensorFlow Serving: text in, text out, everything in the graph."""

import shutil
import uuid
from pathlib import Path

import tensorflow as tf

from pipelines.errors import InputError
from pipelines.translator import MAX_SOURCE_LENGTH, Translator
from tf_relpos import beam_search


def export_saved_model(
    translator: Translator, directory: str | Path, *, alpha: float = 0.6
) -> Path:
    """Writes `directory/<version>/`, complete or absent, with the version after the last.

    Signature `serving_default`: `text` string `[B]` -> `translation` string `[B]` and `score`
    float `[B]`, by beam search. It holds operations of TensorFlow and tensorflow_text alone.

    Args:
        translator: what to export.
        directory: the model's directory, of which TensorFlow Serving serves the last version.
        alpha: length penalty.

    Returns:
        The version's directory.

    Raises:
        InputError: the directory cannot be written.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        versions = [int(p.name) for p in directory.iterdir() if p.name.isdigit()]
    except OSError as error:
        raise InputError(f"cannot write to export_dir {directory}: {error.strerror}") from error
    final = directory / str(max(versions, default=0) + 1)
    temporary = directory / f".{final.name}.{uuid.uuid4().hex[:8]}.incomplete"
    module = _ServedTranslator(translator, alpha)
    try:
        tf.saved_model.save(
            module, str(temporary), signatures={"serving_default": module.translate}
        )
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


class _ServedTranslator(tf.Module):
    def __init__(self, translator: Translator, alpha: float):
        super().__init__()
        self.tokenizer = translator.tokenizer
        self.variables_of_model = [v.value for v in translator.model.weights]
        model, beam_size = translator.model, translator.beam_size

        @tf.function(
            autograph=False, input_signature=[tf.TensorSpec([None], tf.string, name="text")]
        )
        def translate(text):
            source_ids = self.tokenizer.encode(text)[:, :MAX_SOURCE_LENGTH].to_tensor()
            ids, scores = beam_search(model, source_ids, beam_size, alpha)
            return {"translation": self.tokenizer.decode(ids[:, 0]), "score": scores[:, 0]}

        self.translate = translate
