"""A directory for CTranslate2, the fastest engine on a CPU that knows relative positions.

Axes: V vocabulary, D model size, N heads, H head size, R labels, P positions.
"""

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import sentencepiece

from pipelines.errors import InputError
from pipelines.exporters.exportable import Exportable
from pipelines.exporters.quantization import QUANTIZATIONS, Quantization, check_quantization
from pipelines.files.atomic import new_directory
from pipelines.importing import import_optional
from pipelines.progress import progress
from pipelines.translators.ctranslate2 import TOKENIZER_FILE, pieces_of
from tf_relpos import RelativeMultiHeadAttention, Transformer
from tf_relpos.blocks import LAYER_NORM_EPSILON
from tf_relpos.search import EXTRA_LENGTH

_POSITIONS = 1024  # the least that a table covers


@progress("exporting CTranslate2")
def export_ctranslate2(
    exportable: Exportable,
    output: str | os.PathLike,
    *,
    quantization: Quantization = "none",
) -> Path:
    """Writes a model that `ctranslate2.Translator` loads, complete or not at all.

    Relative positions convert where the heads of a layer share their tables; keys or values without
    relative positions get tables of zeros. Sinusoids convert, and so does no position at all.

    The directory holds `model.bin`, `config.json`, the pieces in `shared_vocabulary.json`, and the
    SentencePiece model as `tokenizer.model`. A source is given as its pieces and `</s>`. Beam size
    and length penalty are chosen at translation; CTranslate2 divides by length^p instead of
    ((5 + length) / 6)^alpha, so alpha cannot serve as its p.

    Args:
        exportable: what to write.
        output: the directory; must not exist.
        quantization: of the weights, "none", "float16" or "int8".

    Returns:
        The directory.

    Raises:
        InputError: the format cannot hold the model, the directory exists or cannot be written, the
            tokenizer does not belong to the model, or ctranslate2 is not installed.
    """
    check_quantization(quantization, QUANTIZATIONS, "ctranslate2")
    translator = exportable.translator
    _check_convertible(translator.model)
    directory = Path(output)
    if os.path.lexists(directory):
        raise InputError(f"output {directory} exists already: choose another --output")
    exportable.check_is_not_quantized()
    spec = _specification(translator.model, translator.max_source_length)
    pieces = pieces_of(sentencepiece.SentencePieceProcessor(model_proto=exportable.tokenizer()))
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.register_file(str(exportable.tokenizer_path), TOKENIZER_FILE)
    spec.validate()
    spec.optimize(None if quantization == "none" else quantization)
    with new_directory(directory) as temporary:
        spec.save(str(temporary))
    return directory


def _check_convertible(model: Transformer) -> None:
    config = model.config
    if config.position == "both":
        raise InputError(
            "ctranslate2 knows relative positions or sinusoids, but the model has position both: "
            "export a saved_model or tflite"
        )
    if config.attention_window is not None:
        raise InputError(
            "ctranslate2 attends to all positions, but the model has attention_window "
            f"{config.attention_window}: export a saved_model or tflite"
        )
    if config.compatibility != "product":
        raise InputError(
            "ctranslate2 knows the product of queries and keys, but the model has compatibility "
            f"{config.compatibility}: export a saved_model or tflite"
        )
    if config.uses_relative and not config.heads_share_relative_embedding:
        raise InputError(
            "ctranslate2 has one table of relative positions a layer for all heads, but the model "
            "has one for each (heads_share_relative_embedding is False): export a saved_model or "
            "tflite, or train with --heads_share_relative_embedding true"
        )


def _specification(model: Transformer, max_source_length: int) -> Any:
    """`ctranslate2.specs.TransformerSpec` with the weights of the model."""
    config = model.config
    spec = import_optional("ctranslate2.specs", "ctranslate2").TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.num_heads,
        with_relative_position=config.uses_relative,
        pre_norm=config.norm == "pre",
    )
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    # For `pipelines.translators.ctranslate2`; CTranslate2 ignores what it does not know.
    spec.config.add_attribute("max_source_length", max_source_length)
    spec.config.add_attribute("extra_length", EXTRA_LENGTH)
    positions = max(_POSITIONS, max_source_length + EXTRA_LENGTH)
    embeddings = _array(model.embedding.embeddings)
    # Tables that are equal are stored once.
    spec.encoder.embeddings[0].weight = embeddings
    spec.decoder.embeddings.weight = embeddings
    spec.decoder.projection.weight = embeddings
    for side, blocks, norm in (
        (spec.encoder, model.encoder_blocks, model.encoder_norm),
        (spec.decoder, model.decoder_blocks, model.decoder_norm),
    ):
        if not config.uses_relative:
            side.position_encodings.encodings = _position_encodings(model, positions)
        if norm is not None:
            _set_norm(side.layer_norm, norm)
        for layer, block in zip(side.layer, blocks, strict=True):
            _set_self_attention(layer.self_attention, block)
            _set_dense(layer.ffn.linear_0, block.inner)
            _set_dense(layer.ffn.linear_1, block.outer)
            _set_norm(layer.ffn.layer_norm, block.feed_forward_norm)
    for layer, block in zip(spec.decoder.layer, model.decoder_blocks, strict=True):
        _set_cross_attention(layer.attention, block)
    return spec


def _position_encodings(model: Transformer, positions: int) -> np.ndarray:
    """`[P, D]`, zeros if the model knows no positions: CTranslate2 always adds a table, and its
    own sinusoids are laid out otherwise."""
    zeros = np.zeros((1, positions, model.config.model_dim), "float32")
    if not model.config.uses_sinusoidal:
        return zeros[0]
    return keras.ops.convert_to_numpy(model.position_encoding(zeros))[0].astype("float32")


def _set_self_attention(layer: Any, block: Any) -> None:
    attention = block.self_attention
    queries, keys, values, output = _projections(attention)
    layer.linear[0].weight = np.concatenate([queries, keys, values])
    layer.linear[1].weight = output
    _set_norm(layer.layer_norm, block.self_attention_norm)
    if attention.uses_relations:
        layer.relative_position_keys = _table(attention, attention.relative_key_embeddings)
        layer.relative_position_values = _table(attention, attention.relative_value_embeddings)


def _set_cross_attention(layer: Any, block: Any) -> None:
    queries, keys, values, output = _projections(block.cross_attention)
    layer.linear[0].weight = queries
    layer.linear[1].weight = np.concatenate([keys, values])
    layer.linear[2].weight = output
    _set_norm(layer.layer_norm, block.cross_attention_norm)


def _projections(attention: RelativeMultiHeadAttention) -> list[np.ndarray]:
    """Queries, keys, values and output, each `[outputs, inputs]`."""
    D = attention.num_heads * attention.key_dim
    inner = (attention.query_dense, attention.key_dense, attention.value_dense)
    return [
        *(_array(dense.kernel).reshape(-1, D).T for dense in inner),
        _array(attention.output_dense.kernel).reshape(D, -1).T,
    ]


def _table(attention: RelativeMultiHeadAttention, table: Any) -> np.ndarray:
    """`[R, H]`."""
    if table is None:
        return np.zeros((attention.num_relations, attention.key_dim), "float32")
    return _array(table)


def _set_dense(layer: Any, dense: keras.layers.Dense) -> None:
    layer.weight = _array(dense.kernel).T
    layer.bias = _array(dense.bias)


def _set_norm(layer: Any, norm: keras.layers.LayerNormalization) -> None:
    layer.gamma, layer.beta = _array(norm.gamma), _array(norm.beta)


def _array(variable: keras.Variable) -> np.ndarray:
    return keras.ops.convert_to_numpy(variable).astype("float32")
