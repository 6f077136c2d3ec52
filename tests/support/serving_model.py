"""A small model, exported once for all modules that serve it."""

import atexit
import functools
import random
import shutil
import tempfile
from pathlib import Path

import keras
import tensorflow as tf

from pipelines.data.tokenizer import Tokenizer, train_tokenizer
from pipelines.exporters.exportable import Exportable
from pipelines.exporters.saved_model import export_saved_model
from pipelines.translators.keras_model import Translator
from tf_relpos import Transformer, TransformerConfig, smoothed_cross_entropy

NAME = "toy"
ENGLISH = "the old dog sees a small house today near water and nobody knows why it runs there"
GERMAN = "der alte Hund sieht ein schönes Haus heute am Fluß und niemand weiß warum er dort läuft"

ODD_TEXTS = [
    b"the old dog sees a small house.",
    b"",
    "Der Hund läuft „heute“ 😀 👨\u200d👩\u200d👧.".encode(),
    b"the dog " * 1000,
    b"x" * 5000,
    b"dog \xff\xfe house \xed\xa0\x80 \xc0\x80 \xf0\x9f\x98",
    b"   ",
    "tab\tand\nnewline, NUL \x00, \ufeff日本語".encode(),
    b"house",
]


def sentences(count, seed=0):
    rng, words = random.Random(seed), f"{ENGLISH} {GERMAN}".split()
    return [" ".join(rng.choices(words, k=rng.randint(1, 12))) + "." for _ in range(count)]


def make_translator(directory: Path) -> Translator:
    """It has seen enough sentences to write words that depend on the source, and to end."""
    train_tokenizer(sentences(400), 300, directory / "tokenizer.model")
    tokenizer = Tokenizer(directory / "tokenizer.model")
    keras.utils.set_random_seed(5)
    config = TransformerConfig.preset(
        "tiny",
        vocabulary_size=tokenizer.vocabulary_size,
        model_dim=32,
        inner_dim=64,
        num_heads=2,
        encoder_layers=1,
        decoder_layers=2,
        max_relative_position=3,
        dropout=0.0,
    )
    model = Transformer(config)
    model.build()
    teach_to_copy(model, tokenizer, steps=60)
    return Translator(model, tokenizer, beam_size=3, alpha=0.6)


def teach_to_copy(model: Transformer, tokenizer: Tokenizer, steps: int) -> None:
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    ids = tokenizer.encode(tf.constant(sentences(64 * steps, seed=1)))
    length = int(tf.reduce_max(ids.row_lengths()))

    @tf.function(autograph=False)
    def step(source):
        shifted = tf.pad(source[:, :-1], [[0, 0], [1, 0]], constant_values=2)
        with tf.GradientTape() as tape:
            logits = model({"source_ids": source, "target_ids": shifted}, training=True)
            loss = tf.reduce_sum(smoothed_cross_entropy(source, logits))
            loss = loss / tf.cast(tf.math.count_nonzero(source), tf.float32)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    for begin in range(0, 64 * steps, 64):
        step(ids[begin : begin + 64].to_tensor(shape=[64, length]))


@functools.cache
def exported() -> tuple[Translator, Path]:
    """The translator and `<temporary>/toy/1`."""
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    translator = make_translator(directory)
    exportable = Exportable(translator, directory / "tokenizer.model")
    return translator, export_saved_model(exportable, directory / NAME)


def tokenizer_path() -> Path:
    """The SentencePiece model of the translator."""
    return exported()[1].parent.parent / "tokenizer.model"


@functools.cache
def loaded():
    """The SavedModel's signatures by name."""
    return tf.saved_model.load(str(exported()[1])).signatures


def translate(texts):
    """Translations and scores of the signature `serving_default`, `[B]`."""
    result = loaded()["serving_default"](text=tf.constant(texts, tf.string))
    return result["translation"].numpy(), result["score"].numpy()


def nbest(texts, beam_size, alpha):
    """Translations and scores of the signature `nbest`, `[B, K]`."""
    result = loaded()["nbest"](
        text=tf.constant(texts, tf.string),
        beam_size=tf.constant(beam_size),
        alpha=tf.constant(alpha),
    )
    return result["translations"].numpy(), result["scores"].numpy()
