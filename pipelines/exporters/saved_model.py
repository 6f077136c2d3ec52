"""A SavedModel for TensorFlow Serving: text in, text out, everything in the graph."""

import os
from pathlib import Path
from typing import Any

import tensorflow as tf
from keras import tree
from tensorflow.core.protobuf import saved_model_pb2

from pipelines.exporters.exportable import Exportable
from pipelines.exporters.quantization import (
    SAVED_MODEL_QUANTIZATIONS,
    SavedModelQuantization,
    check_quantization,
)
from pipelines.exporters.versions import check_is_new, new_version, write_source
from pipelines.exporters.warmup import write_warmup_requests
from pipelines.progress import progress
from pipelines.translators.base import MAX_ALPHA, MAX_BEAM_SIZE
from pipelines.translators.keras_model import Translator, search_texts
from pipelines.translators.stepping import SteppingModel, each_once
from tf_relpos import Transformer

_WARMUP_SENTENCE = "A sentence of common length, to be translated before the first one that counts."
# What `str.strip` takes away, for RE2.
_WHITE_SPACE = r"[\s\pZ\x0b\x1c-\x1f\x{85}]*"


@progress("exporting a SavedModel")
def export_saved_model(
    exportable: Exportable,
    output: str | os.PathLike,
    *,
    version: int | None = None,
    quantization: SavedModelQuantization = "none",
) -> Path:
    """Writes `output/<version>/`, complete or absent.

    Signatures, with batches of any size B:

    - `serving_default`: `text` string `[B]` -> `translation` string `[B]`, `score` float `[B]`,
      with the translator's beam size and length penalty.
    - `nbest`: `text` and the scalars `beam_size` int32, 1 to `MAX_BEAM_SIZE`, and `alpha` float,
      0 to `MAX_ALPHA` -> `translations` string `[B, K]`, `scores` float `[B, K]`, best first.
    - `source_length`: `text` -> `subwords` int32 `[B]`, the end mark included, and `limit` int32
      `[B]`, how many of them are read.

    The graph holds operations of TensorFlow and tensorflow_text alone. Text may be anything: each
    byte that is not UTF-8 is read as U+FFFD, and a source is cut at the translator's
    `max_source_length`. One of nothing but white space has empty translations with a score of 0.

    Args:
        exportable: what to write.
        output: the model's directory, of which TensorFlow Serving serves the latest version.
        version: the number; one more than the largest unless given.
        quantization: "none", or "bfloat16" for weights of half the size, with which it computes in
            bfloat16, but for norms, softmax and scores. Faster where the processor multiplies
            bfloat16 faster and the model is large, such as `base`; slower elsewhere.

    Returns:
        The version's directory.

    Raises:
        AlreadyExported: no version is given, and the newest has the same weights and search.
        InputError: the version exists, the directory cannot be written, no version is given and
            the newest is another run's, or a model that Keras has quantized is to be in bfloat16.
    """
    check_quantization(quantization, SAVED_MODEL_QUANTIZATIONS, "saved_model")
    source, model = exportable.source(), exportable.translator.model
    if quantization == "bfloat16":
        exportable.check_is_not_quantized()
        source["quantization"] = quantization
        model = _in_bfloat16(model)
    with new_version(Path(output), version) as (temporary, final):
        if version is None:
            check_is_new(Path(output), source)
        module = _ServedTranslator(exportable.translator, model)
        tf.saved_model.save(
            module,
            str(temporary),
            signatures={
                "serving_default": module.translate,
                "nbest": module.nbest,
                "source_length": module.source_length,
            },
            # What serves has no gradients.
            options=tf.saved_model.SaveOptions(experimental_custom_gradients=False),
        )
        # In bfloat16 they are to be taken apart: its products are oneDNN's, whose operations
        # TensorFlow puts only there.
        if quantization == "none":
            _keep_loops(temporary)
        # Not nbest: a server that batches requests cannot take its scalars, and a warm-up request
        # that fails keeps it from serving the model at all.
        write_warmup_requests(
            temporary,
            final.absolute().parent.name,
            "serving_default",
            [{"text": [_WARMUP_SENTENCE]}, {"text": ["", *[_WARMUP_SENTENCE] * 7]}],
        )
        write_source(temporary, source)
    return final


def _in_bfloat16(model: Transformer) -> Transformer:
    """The model with its weights rounded, which computes in bfloat16."""
    rounded = Transformer(model.config, dtype="bfloat16")
    rounded.build()
    for layer, other in zip(model._flatten_layers(), rounded._flatten_layers(), strict=True):
        weights: dict[str, Any] = {}
        layer.save_own_variables(weights)  # with LoRA's part in them
        other.load_own_variables(weights)
    return rounded


class _ServedTranslator(tf.Module):
    """The functions behind the signatures, over one search that both call.

    Args:
        translator: the tokenizer and the settings.
        model: what it translates with.
    """

    def __init__(self, translator: Translator, model: Transformer):
        super().__init__()
        self.tokenizer = translator.tokenizer
        stepping = _SteppingModel(model)
        text = tf.TensorSpec([None], tf.string, name="text")
        beam_size = tf.TensorSpec([], tf.int32, name="beam_size")
        alpha = tf.TensorSpec([], tf.float32, name="alpha")
        n = tf.TensorSpec([], tf.int32, name="n")

        @tf.function(autograph=False, input_signature=[text, beam_size, alpha, n])
        def search(
            text: tf.Tensor, beam_size: tf.Tensor, alpha: tf.Tensor, n: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            source_ids = translator.read(text).to_tensor(model.config.pad_id)
            texts, scores = search_texts(
                stepping, translator.tokenizer, source_ids, beam_size, alpha, nbest=n
            )
            is_blank = tf.strings.regex_full_match(text, _WHITE_SPACE)[:, tf.newaxis]
            return tf.where(is_blank, "", texts), tf.where(is_blank, 0.0, scores)

        @tf.function(autograph=False, input_signature=[text])
        def translate(text: tf.Tensor) -> dict[str, tf.Tensor]:
            texts, scores = search(text, translator.beam_size, translator.alpha, 1)
            return {"translation": texts[:, 0], "score": scores[:, 0]}

        @tf.function(autograph=False, input_signature=[text, beam_size, alpha])
        def nbest(text: tf.Tensor, beam_size: tf.Tensor, alpha: tf.Tensor) -> dict[str, tf.Tensor]:
            beam_size = _in_range("beam_size", beam_size, 1, MAX_BEAM_SIZE)
            alpha = _in_range("alpha", alpha, 0.0, MAX_ALPHA)
            texts, scores = search(text, beam_size, alpha, beam_size)
            return {"translations": texts, "scores": scores}

        @tf.function(autograph=False, input_signature=[text])
        def source_length(text: tf.Tensor) -> dict[str, tf.Tensor]:
            subwords = tf.cast(translator.tokenizer.encode(text).row_lengths(), tf.int32)
            limit = tf.fill(tf.shape(subwords), translator.max_source_length)
            return {"subwords": subwords, "limit": limit}

        self.translate = translate
        self.nbest = nbest
        self.source_length = source_length
        self.variables_of_model = stepping.variables()


class _SteppingModel(SteppingModel):
    """One that lays out its weights for steps once and not at each request.

    Args:
        model: a `Transformer`, whose weights stay as they are.
    """

    def __init__(self, model: Transformer):
        super().__init__(model)
        with tf.GradientTape() as tape:
            step_weights = super().step_weights()
        self._step_weights = each_once(lambda x: tf.Variable(x, trainable=False), step_weights)
        self._laid_out = list({id(x): x for x in tree.flatten(self._step_weights)}.values())
        # What they are made of is read by nothing else, but for the embedding.
        made_of = {id(variable) for variable in tape.watched_variables()}
        made_of -= {id(variable.value) for variable in model.embedding.variables}
        self.weights = [weight for weight in model.weights if id(weight.value) not in made_of]

    def step_weights(self) -> dict[str, Any]:
        return tree.map_structure(tf.convert_to_tensor, self._step_weights)

    def variables(self) -> list[tf.Variable]:
        """All that a search reads."""
        return [*(weight.value for weight in self.weights), *self._laid_out]


def _keep_loops(directory: Path) -> None:
    """Has TensorFlow run loops as they are, in the graph of the version in `directory`.

    Unless told otherwise it takes them apart, into operations that hand on what each turn needs,
    which a search of one sentence, whose steps are hundreds of small operations, feels most.
    """
    path = directory / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    (graph,) = model.meta_graphs
    for function in graph.graph_def.library.function:
        for node in function.node_def:
            node.attr.pop("_lower_using_switch_merge", None)
    path.write_bytes(model.SerializeToString(deterministic=True))
    (directory / "fingerprint.pb").unlink()  # of the graph before


def _in_range(name: str, value: tf.Tensor, lowest: float, highest: float) -> tf.Tensor:
    """The scalar `value`; the graph fails where it is out of range, or NaN."""
    rule = f"{name} must be from {lowest} to {highest}, got"
    check = tf.debugging.Assert((value >= lowest) & (value <= highest), [rule, value])
    with tf.control_dependencies([check]):
        return tf.identity(value)
