"""Subwords: one SentencePiece vocabulary, learnt from both sides and applied in the graph."""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import sentencepiece
import tensorflow as tf
from tensorflow_text import SentencepieceTokenizer
from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer

from pipelines.data.dataset import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from pipelines.data.subword_model import read_model
from pipelines.errors import InputError
from pipelines.files.atomic import new_file
from pipelines.importing import silence
from pipelines.interruption import in_a_thread

# The four special ids, the 256 bytes of `byte_fallback`, and one character; or one word.
_SMALLEST_VOCABULARY = 4 + 256 + 1
_SMALLEST_OF_WORDS = 4 + 1

_TRAINING: dict[str, Any] = {
    "pad_id": PAD_ID,
    "unk_id": UNKNOWN_ID,
    "bos_id": START_ID,
    "eos_id": END_ID,
    # NFKC alone: SentencePiece's default rule also deletes or replaces characters.
    "normalization_rule_name": "nfkc",
    # A character too rare for a piece of its own is spelt in bytes, so no text is unknown.
    "character_coverage": 0.9999,
    "byte_fallback": True,
    "hard_vocab_limit": True,
    # Sums in floating point depend on the number of threads, so it must not depend on the machine.
    "num_threads": 16,
    "shuffle_input_sentence": True,
    "minloglevel": 2,
}
# Words are pieces as they stand in the text. In bytes, one that is unknown would lose the space
# before it.
_WORDS = {
    "normalization_rule_name": "identity",
    "byte_fallback": False,
    "unk_surface": " <unk>",
}


class KeptErrors:
    """Iterates over `items` for native code, which would turn an exception into a nameless one.

    An exception ends the iteration; `reraise` raises it afterwards as what it was.
    """

    def __init__(self, items: Iterable):
        self._items = items
        self._error: Exception | None = None

    def __iter__(self) -> Iterator:
        try:
            yield from self._items
        except Exception as error:
            self._error = error

    def reraise(self) -> None:
        """Raises the exception that ended the iteration, if one did."""
        if self._error is not None:
            raise self._error


def train_tokenizer(
    sentences: Iterable[str],
    vocabulary_size: int,
    path: str | Path,
    *,
    subword_model: str = "unigram",
    sample_size: int = 1_000_000,
) -> None:
    """Learns subwords and writes the SentencePiece model; the same text gives the same bytes.

    Args:
        sentences: text of both sides. Memory does not grow with the stream: SentencePiece keeps a
            random sample of `sample_size` sentences (its reservoir has a fixed seed). Sentences
            beyond 4,192 bytes are not learnt from.
        vocabulary_size: V, pieces to learn, special ids and single bytes included.
        path: where the model appears, complete.
        subword_model: "unigram", "bpe", or "word": what stands between white space is a piece as
            it is, the most frequent ones are known, and others are `<unk>`.
        sample_size: the most sentences to learn from, more than 100.

    Raises:
        InputError: the text holds nothing to learn from, or too little or too much of it for
            `vocabulary_size`.
    """
    settings = {**_TRAINING, "model_type": subword_model}
    if subword_model == "word":
        settings |= _WORDS
        smallest, what = _SMALLEST_OF_WORDS, "the words of the text"
    else:
        smallest, what = _SMALLEST_VOCABULARY, "256 bytes and the characters of the text"
    if vocabulary_size < smallest:
        raise InputError(
            f"vocabulary_size must be at least {smallest} (4 special ids, {what}), "
            f"got {vocabulary_size}"
        )
    stream, model, is_wanted = KeptErrors(sentences), io.BytesIO(), True

    def sentences_or_failure() -> Iterator[str]:
        for sentence in stream:
            if not is_wanted:
                return
            yield sentence
        stream.reraise()  # or it would learn from half a text before failing

    def learn() -> None:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=sentences_or_failure(),
            model_writer=model,
            vocab_size=vocabulary_size,
            input_sentence_size=sample_size,
            **settings,
        )

    try:
        in_a_thread(learn)
    except (RuntimeError, ValueError) as error:
        stream.reraise()
        raise InputError(_explain(str(error), vocabulary_size)) from error
    finally:
        is_wanted = False
    with new_file(path) as temporary:
        temporary.write_bytes(model.getvalue())


def _explain(message: str, vocabulary_size: int) -> str:
    """SentencePiece's failure in terms of our arguments."""
    if found := re.search(r"too high .* value <= (\d+)", message):
        return f"vocabulary_size must be at most {found[1]} for this text, got {vocabulary_size}"
    if found := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return f"vocabulary_size must be more than {found[1]} for this text, got {vocabulary_size}"
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return "the training text holds nothing to learn subwords from"
    return f"cannot learn vocabulary_size {vocabulary_size} subwords: {' '.join(message.split())}"


class Tokenizer(tf.Module):
    """Text to ids and back, in the graph; a SavedModel that tracks it contains the vocabulary.

    Text comes back up to NFKC and runs of white space.

    Args:
        path: a SentencePiece model with ids 0 pad, 1 unknown, 2 start, 3 end.

    Attributes:
        vocabulary_size: V.

    Raises:
        InputError: there is no such file, or it is not such a model.
    """

    def __init__(self, path: str | Path):
        super().__init__(name="tokenizer")
        model = read_model(Path(path))
        self.vocabulary_size = model.get_piece_size()
        self._tokenizer = _Subwords(model.serialized_model_proto())

    def encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """string `[B]` -> int32 `[B, (ids)]`, each ending with the end id."""
        return self._tokenizer.tokenize(texts)

    def encode_with_offsets(
        self, texts: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """The ids of `encode`, and where in the text each begins and ends, in bytes of UTF-8.

        The end id stands at 0; of a character that is spelt in bytes, the last one has it all.
        """
        return self._tokenizer.tokenize_with_offsets(texts)

    def decode(self, ids: tf.Tensor) -> tf.Tensor:
        """int `[B, L]` -> string `[B]`: what stands before the first end id, without padding."""
        ids = tf.cast(ids, tf.int32)
        ended = tf.cumsum(tf.cast(ids == END_ID, tf.int32), axis=1) > 0
        text = ~ended & (ids != PAD_ID) & (ids != START_ID)
        return self._tokenizer.detokenize(tf.ragged.boolean_mask(ids, text))


class _Subwords(SentencepieceTokenizer):
    """The tokenizer of tensorflow_text over a model that outlives the kernel that loaded it.

    Its own resource dies with the kernel cache, which `keras.utils.set_random_seed` clears.
    """

    def __init__(self, model: bytes):
        with silence():  # of models of words it tells that they are not normalized
            super().__init__(model, out_type=tf.int32, add_eos=True)
            self._model_resource = _NamedModel(model)


class _NamedModel(tf.saved_model.experimental.TrackableResource):
    """A SentencePiece model under a name of its own, so that no kernel owns it.

    The name is the model's digest: whoever shares the name has the same vocabulary.
    """

    def __init__(self, model: bytes):
        super().__init__()
        self._model = model
        _ = self.resource_handle  # creates it

    def _create_resource(self) -> tf.Tensor:
        return gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model, shared_name=hashlib.sha256(self._model).hexdigest()
        )
