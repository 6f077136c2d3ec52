"""A model of random weights and its tokenizer: made at once, and most of its hypotheses differ."""

import random
from pathlib import Path
from typing import Any

import keras
import numpy as np

from pipelines.data.tokenizer import Tokenizer, train_tokenizer
from pipelines.exporters.exportable import Exportable
from pipelines.translators.keras_model import Translator
from tf_relpos import Transformer, TransformerConfig

V = 283
WORDS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]


def write_tokenizer(path: Path) -> Path:
    """A SentencePiece model of `V` pieces."""
    rng = random.Random(5)
    train_tokenizer((" ".join(rng.choices(WORDS, k=7)) for _ in range(300)), V, path)
    return path


def make_exportable(model: Transformer, tokenizer_path: Path, **settings: Any) -> Exportable:
    """What is exported of a model; `settings` are those of its search."""
    return Exportable(Translator(model, Tokenizer(tokenizer_path), **settings), tokenizer_path)


def make_model_that_ends_at_once(**config: Any) -> Transformer:
    """A random model that takes the end for more probable than anything else, at each step."""
    model = make_model(**config)
    end = keras.ops.convert_to_numpy(model.embedding.embeddings)[3]
    model.decoder_norm.beta.assign_add(4 * end / np.linalg.norm(end))
    return model


def make_model(**config: Any) -> Transformer:
    """A random model, whose weights float16 holds exactly; some of its hypotheses end early."""
    keras.utils.set_random_seed(3)
    small = {"model_dim": 24, "inner_dim": 17, "num_heads": 3, "max_relative_position": 2}
    config = {**small, "encoder_layers": 1, "decoder_layers": 2, **config}
    model = Transformer(TransformerConfig.preset("tiny", vocabulary_size=V, **config))
    model.build()
    for weight in model.trainable_variables:
        value = weight.numpy() + np.random.normal(size=weight.shape)
        if weight is model.embedding.embeddings:
            value[3] *= 1.5
        weight.assign(value.astype("float16").astype("float32"))
    return model
