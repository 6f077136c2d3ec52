"""Text to text: tokenizer, beam search and detokenizer around a model."""

from collections.abc import Sequence

import tensorflow as tf

from pipelines.data.tokenizer import Tokenizer
from pipelines.translators.base import BATCH_SIZE, MAX_SOURCE_LENGTH, TextTranslator, Translation
from tf_relpos import Transformer, beam_search


class Translator(TextTranslator):
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
