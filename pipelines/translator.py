"""Text to text: tokenizer, beam search and detokenizer around a model."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import tensorflow as tf

from pipelines.tokenizer import Tokenizer
from pipelines.translation import (
    BATCH_SIZE,
    MAX_SOURCE_LENGTH,
    SENTENCES_AT_A_TIME,
    Translation,
)
from tf_relpos import Transformer, beam_search


class Translator:
    """Translates sentences with a model, best hypotheses first.

    A sentence is translated alike whatever else stands in its batch. Sources beyond
    `MAX_SOURCE_LENGTH` subwords are cut there.

    Args:
        model: a `Transformer`, best in float32.
        tokenizer: its subwords.
        beam_size: hypotheses kept; 1 is greedy search.
        alpha: length penalty.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, *, beam_size: int = 4, alpha: float = 0.6
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.beam_size = beam_size
        self.alpha = alpha

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int32)])
        def search(source_ids):
            ids, scores = beam_search(model, source_ids, beam_size, alpha)
            texts = tokenizer.decode(tf.reshape(ids, [-1, tf.shape(ids)[-1]]))
            return tf.reshape(texts, tf.shape(scores)), scores

        self._search = search

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """The best translation of each sentence, in their order."""
        return [hypotheses[0].text for hypotheses in self.stream(sentences)]

    def stream(
        self, sentences: Iterable[str], sentences_at_a_time: int = SENTENCES_AT_A_TIME
    ) -> Iterator[list[Translation]]:
        """The K best translations of each sentence, in their order, as they are ready."""
        sentences = iter(sentences)
        while chunk := list(islice(sentences, sentences_at_a_time)):
            yield from self._translate_chunk(chunk)

    def _translate_chunk(self, sentences: Sequence[str]) -> list[list[Translation]]:
        """Batches sentences of like length, so that little time goes to padding."""
        ids = self.tokenizer.encode(tf.constant([s.encode() for s in sentences]))
        lengths = ids.row_lengths().numpy()
        by_length = sorted(range(len(sentences)), key=lambda i: lengths[i])
        results: list[list[Translation]] = [[] for _ in sentences]
        for begin in range(0, len(by_length), BATCH_SIZE):
            chosen = by_length[begin : begin + BATCH_SIZE]
            batch = tf.gather(ids, chosen)[:, :MAX_SOURCE_LENGTH].to_tensor()
            texts, scores = self._search(batch)
            for i, row_texts, row_scores in zip(chosen, texts.numpy(), scores.numpy(), strict=True):
                results[i] = [
                    Translation(text.decode(), float(score))
                    for text, score in zip(row_texts, row_scores, strict=True)
                ]
        return results
