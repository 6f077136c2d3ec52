"""A folder for any static server: a page that translates in the browser."""

import json
import os
from pathlib import Path

from sentencepiece import sentencepiece_model_pb2

from pipelines.errors import InputError
from pipelines.exporters.attention_graph import layers_with_distances
from pipelines.exporters.exportable import Exportable
from pipelines.exporters.quantization import QUANTIZATIONS, Quantization, check_quantization
from pipelines.exporters.tflite import write_model
from pipelines.exporters.web_page import build_page, install_packages
from pipelines.files.atomic import new_directory
from pipelines.progress import progress
from pipelines.translators.packed_model import PACKED_NAME
from tf_relpos import Transformer


@progress("exporting a web page")
def export_web(
    exportable: Exportable,
    output: str | os.PathLike,
    *,
    quantization: Quantization = "int8",
    max_source_length: int | None = None,
    max_target_length: int | None = None,
) -> Path:
    """Writes the page, its scripts, LiteRT's runtime, the model and its tokenizer.

    `model.tflite` is a file of `export_tflite`, but its outputs `target_ids` `[K, L]` and `score`
    `[K]` are all K hypotheses of the beam, and a second signature tells what the model looks at
    (`attention_graph`). In its place stands `model.packed` if weights become integers: the page
    makes the file of it again, in float32. `pipelines.translators.tflite` reads both.

    Args:
        exportable: what to write; beam size and length penalty are its translator's.
        output: the directory.
        quantization: of the weights: "int8" rounds them and nothing else, so that all browsers find
            the same translations; "none" or "float16" are those of `export_tflite`.
        max_source_length, max_target_length: see `export_tflite`.

    Returns:
        The directory.

    Raises:
        InputError: an argument is out of range, the output exists or cannot be written, the
            tokenizer does not belong to the model or is of a kind that the page cannot apply, or
            the page cannot be built: no checkout, no Node.
    """
    output = Path(output)
    check_quantization(quantization, QUANTIZATIONS, "web")
    if os.path.lexists(output):
        raise InputError(f"output {output} exists already: choose another --output")
    check_tokenizer(exportable.tokenizer())
    install_packages()  # before what takes longer
    packed = quantization == "int8"
    name = PACKED_NAME if packed else "model.tflite"
    with new_directory(output) as site:
        settings = write_model(
            exportable,
            site / name,
            quantization=quantization,
            max_source_length=max_source_length,
            max_target_length=max_target_length,
            hypotheses=exportable.translator.beam_size,
            attention=True,
            packed=packed,
        )
        text = json.dumps({**settings, "model": name, **_of_attention(exportable.translator.model)})
        (site / "settings.json").write_text(text, encoding="utf-8")
        build_page(site)
    return output


def _of_attention(model: Transformer) -> dict[str, object]:
    """What the page must know of the model to show what it looks at."""
    return {
        "heads": model.config.num_heads,
        "max_relative_position": model.config.max_relative_position,
        "layers": layers_with_distances(model),
    }


def check_tokenizer(serialized: bytes) -> None:
    """Checks that `web/src/subwords.ts` can apply a SentencePiece model.

    Raises:
        InputError: it cannot.
    """
    model = sentencepiece_model_pb2.ModelProto.FromString(serialized)
    spec = model.trainer_spec
    kind = spec.ModelType.Name(spec.model_type).lower()
    if kind not in ("unigram", "bpe", "word"):
        raise InputError(
            f"format web needs a tokenizer of type unigram, bpe or word, got one of type {kind}"
        )
    if spec.treat_whitespace_as_suffix:
        raise InputError("format web needs a tokenizer that puts spaces in front of words")
    if model.denormalizer_spec.precompiled_charsmap:
        raise InputError("format web needs a tokenizer without rules of denormalization")
