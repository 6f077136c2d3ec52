"""A TFLite file for apps: encoder, cached decoder and beam search in one graph.

Axes: S source positions, L target positions.
"""

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from pipelines.errors import InputError
from pipelines.exporters.attention_graph import attention_graph
from pipelines.exporters.exportable import Exportable
from pipelines.exporters.flatbuffer import completed
from pipelines.exporters.packed_model import pack
from pipelines.exporters.quantization import QUANTIZATIONS, Quantization, check_quantization
from pipelines.exporters.search_graph import search_graph
from pipelines.files.atomic import new_file
from pipelines.progress import progress
from pipelines.translators.keras_model import Translator
from pipelines.translators.tflite import METADATA_FORMAT
from tf_relpos.search import EXTRA_LENGTH

_MAX_SOURCE_LENGTH = 128  # enough for the sentences of an app

SEARCH, ATTENTION = "serving_default", "attention"  # signatures


@progress("exporting TFLite")
def export_tflite(
    exportable: Exportable,
    output: str | os.PathLike,
    *,
    quantization: Quantization = "none",
    max_source_length: int | None = None,
    max_target_length: int | None = None,
) -> Path:
    """Writes a `.tflite` file and its tokenizer, complete or not at all.

    Signature `serving_default`: `source_ids` int32 `[1, S]`, subwords with the end id, then padding
    -> `target_ids` int32 `[1, L]`, the same, and `score` float32 `[1]`: the best hypothesis of
    `beam_search`. It needs only TFLite's built-in operations, and its time grows with the length of
    the sentence, not with S and L.

    The settings are in the file, as JSON in the metadata entry `tf_relpos`, which
    `pipelines.translators.tflite.read_metadata` reads. The SentencePiece model lies beside it:
    `x.tokenizer.model` for `x.tflite`.

    Args:
        exportable: what to write; beam size and length penalty are its translator's.
        output: the file, if it ends in `.tflite`; otherwise a directory for `model.tflite`.
        quantization: of the weights: "none", "float16", or "int8", which also computes products of
            matrices in integers (dynamic range).
        max_source_length: S >= 2, at most the translator's; 128 or the translator's, whichever is
            less, unless given.
        max_target_length: L, at most S + 50, which is what it is unless given. A sentence takes up
            to its own length + 50 of them.

    Returns:
        The file.

    Raises:
        InputError: an argument is out of range, the output exists or cannot be written, or the
            tokenizer does not belong to the model.
    """
    output = Path(output)
    output = output if output.suffix == ".tflite" else output / "model.tflite"
    write_model(
        exportable,
        output,
        quantization=quantization,
        max_source_length=max_source_length,
        max_target_length=max_target_length,
    )
    return output


def write_model(
    exportable: Exportable,
    output: Path,
    *,
    quantization: Quantization,
    max_source_length: int | None,
    max_target_length: int | None = None,
    hypotheses: int = 1,
    attention: bool = False,
    packed: bool = False,
) -> Mapping[str, object]:
    """Writes the files of `export_tflite`, whose search gives back several hypotheses, best first.

    `target_ids` is `[hypotheses, L]`, and `score` `[hypotheses]`. With `attention` there is another
    signature, "attention": the `attention_graph`. With `packed` the file is that of "none", packed,
    which is a way to quantize as well. Raises what `export_tflite` does.

    Returns:
        The settings that are in the file.
    """
    translator = exportable.translator
    if max_source_length is None:
        max_source_length = min(_MAX_SOURCE_LENGTH, translator.max_source_length)
    if max_target_length is None:
        max_target_length = max_source_length + EXTRA_LENGTH
    check_quantization(quantization, QUANTIZATIONS, "tflite")
    _check_numbers(translator, max_source_length, max_target_length)
    exportable.check_is_not_quantized()
    tokenizer = exportable.tokenizer()
    tokenizer_output = output.with_suffix(".tokenizer.model")
    _check_nothing_is_replaced(output, tokenizer_output, tokenizer)
    lengths = max_source_length, max_target_length
    in_the_file = "none" if packed else quantization
    in_integers = in_the_file == "int8"
    graphs = {
        SEARCH: search_graph(translator, *lengths, hypotheses=hypotheses, in_integers=in_integers)
    }
    if attention:
        graphs[ATTENTION] = attention_graph(translator.model, *lengths, in_integers=in_integers)
    metadata = {
        "format": METADATA_FORMAT,
        "max_source_length": max_source_length,
        "max_target_length": max_target_length,
        "quantization": quantization,
        "tokenizer": tokenizer_output.name,
        "tokenizer_sha256": hashlib.sha256(tokenizer).hexdigest(),
        **_description(exportable),
    }
    content = completed(
        _convert(graphs, in_half=in_the_file == "float16"),
        json.dumps(metadata),
        in_integers=in_integers,
    )
    # The model appears last: where it exists, so does its tokenizer. Both are written before.
    with new_file(output) as file:
        file.write_bytes(pack(content) if packed else content)
        _check_nothing_is_replaced(output, tokenizer_output, tokenizer)  # nor what came meanwhile
        if not tokenizer_output.exists():
            with new_file(tokenizer_output) as beside:
                beside.write_bytes(tokenizer)
    return metadata


def _check_nothing_is_replaced(output: Path, tokenizer_output: Path, tokenizer: bytes) -> None:
    if os.path.lexists(output):
        raise InputError(f"output {output} exists already: choose another --output")
    is_there = os.path.lexists(tokenizer_output)
    if is_there and not _holds(tokenizer_output, tokenizer):
        raise InputError(
            f"output {output} needs its tokenizer in {tokenizer_output}, which holds another one: "
            "choose another --output"
        )


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _check_numbers(translator: Translator, max_source_length: int, max_target_length: int) -> None:
    for name, value, least in (
        ("beam_size", translator.beam_size, 1),
        ("max_source_length", max_source_length, 2),  # a subword and the end id
        ("max_target_length", max_target_length, 1),
    ):
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}")
    longest = max_source_length + EXTRA_LENGTH
    if max_target_length > longest:
        raise InputError(
            f"max_target_length must be at most {longest}, which no sentence is longer than, got "
            f"{max_target_length}"
        )
    if max_source_length > translator.max_source_length:
        raise InputError(
            f"max_source_length must be at most {translator.max_source_length}, the longest source "
            f"that the model was trained with, got {max_source_length}"
        )


def _description(exportable: Exportable) -> Mapping[str, object]:
    """What the metadata says of the model and its search."""
    translator, config = exportable.translator, exportable.translator.model.config
    return {
        "beam_size": translator.beam_size,
        "alpha": translator.alpha,
        "source_language": exportable.source_language,
        "target_language": exportable.target_language,
        "vocabulary_size": config.vocabulary_size,
        "pad_id": config.pad_id,
        "unknown_id": config.unknown_id,
        "start_id": config.start_id,
        "end_id": config.end_id,
    }


@contextlib.contextmanager
def _gradients_unmentioned() -> Iterator[None]:
    """Without a warning for each gradient that a file for inference leaves out."""

    def is_shown(record: logging.LogRecord) -> bool:
        return "unsaved custom gradients" not in record.getMessage()

    log = logging.getLogger("absl")
    log.addFilter(is_shown)
    try:
        yield
    finally:
        log.removeFilter(is_shown)


@_gradients_unmentioned()
def _convert(
    graphs: Mapping[str, tf.types.experimental.ConcreteFunction], *, in_half: bool
) -> bytes:
    """The graphs as signatures of one model, in half precision or in float32."""
    functions = list(graphs.values())
    if len(functions) == 1:
        converter = tf.lite.TFLiteConverter.from_concrete_functions(functions, tf.Module())
        return _converted(converter, in_half=in_half)
    with tempfile.TemporaryDirectory() as directory:  # the only way that takes several
        try:
            tf.saved_model.save(tf.Module(), directory, signatures=graphs)
        except tf.errors.OpError as error:
            raise InputError(
                f"{error.message}: exporting needs room for temporary files"
            ) from error
        names = list(graphs)
        converter = tf.lite.TFLiteConverter.from_saved_model(directory, signature_keys=names)
        return _converted(converter, in_half=in_half)


def _converted(converter: tf.lite.TFLiteConverter, *, in_half: bool) -> bytes:
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if in_half:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]
    return converter.convert()
