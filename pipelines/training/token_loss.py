"""The loss of a batch's tokens and its gradient, some tokens at a time.

Logits are V numbers for each token, most of what a batch takes of memory, and the loss and its
gradient need them once: they are never there for all tokens together, and for padding not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from tf_relpos import smoothed_cross_entropy
from tf_relpos.training import number_at

# The most tokens at a time, of whose logits XLA makes a copy in single precision, and what their
# number is a multiple of: XLA compiles each number that occurs.
MOST = 1024
MULTIPLE = 64

Sums = dict[str, tf.Tensor]


@dataclass(frozen=True)
class TokenLoss:
    """Smoothed cross-entropy, and with `r_drop` the divergence of two passes over the same tokens.

    Attributes:
        smoothing: see `smoothed_cross_entropy`.
        r_drop: see `TranslationTrainer`.
        pad_id: the label where there is no token.
        scale: what the loss is multiplied with before its gradient is taken, as the optimizer
            wants it.
        is_compiled: whether XLA compiles it: it is bound by memory, and XLA joins its passes.
    """

    smoothing: float
    r_drop: float
    pad_id: int
    scale: Callable[[tf.Tensor], tf.Tensor]
    is_compiled: bool = False

    def gradients(
        self,
        labels: tf.Tensor,
        hidden: tf.Tensor,
        columns: tf.Tensor,
        total_tokens: tf.Tensor,
        at_once: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor, Sums]:
        """Of the logits `hidden columns`.

        Args:
            labels: int `[B, T]`.
            hidden: `[P*B, T, D]`, of P passes: one, or two with `r_drop`.
            columns: `[D, V]`.
            total_tokens: float32, what the loss is divided by before its gradient is taken.
            at_once: all positions together, those of padding included: where XLA compiles what is
                around this, it has to know all sizes.

        Returns:
            The gradients by `hidden` and by `columns`, and the sums over tokens of `of_tokens`.
        """
        rows = tf.reshape(hidden, [-1, tf.size(labels), hidden.shape[-1]])
        tokens = tf.reshape(labels, [-1])
        if at_once:
            by_rows, by_columns, sums = self._of_rows(tokens, rows, columns, total_tokens)
            return tf.reshape(by_rows, tf.shape(hidden)), by_columns, sums

        is_token = tokens != self.pad_id
        places = tf.cast(tf.where(is_token)[:, 0], tf.int32)
        count = tf.size(places)
        blocks = tf.maximum((count + MOST - 1) // MOST, 1)
        size = tf.maximum(-(-count // (blocks * MULTIPLE)), 1) * MULTIPLE
        # What whole blocks lack are rows without a label.
        missing = [[0, blocks * size - count]]
        tokens = tf.pad(tf.gather(tokens, places), missing, constant_values=self.pad_id)
        rows = tf.gather(rows, tf.pad(places, missing), axis=1)

        def step(index, by_rows, by_columns, sums):
            block = slice(index * size, (index + 1) * size)
            own = self._of_rows(tokens[block], rows[:, block], columns, total_tokens)
            own_rows, own_columns, own_sums = own
            by_rows = by_rows.write(index, tf.transpose(own_rows, [1, 0, 2]))
            by_columns += tf.cast(own_columns, by_columns.dtype)
            return index + 1, by_rows, by_columns, tf.nest.map_structure(tf.add, sums, own_sums)

        _, by_rows, by_columns, sums = tf.while_loop(
            lambda index, *_: index < blocks,
            step,
            (
                0,
                tf.TensorArray(hidden.dtype, blocks, element_shape=[None, *rows.shape[::2]]),
                tf.zeros(tf.shape(columns)),
                dict.fromkeys(("loss", "nll", "correct"), tf.zeros([])),
            ),
            parallel_iterations=1,
        )
        # A row of zeros behind them is that of all padding.
        by_rows = tf.pad(by_rows.concat(), [[0, 1], [0, 0], [0, 0]])
        number = tf.where(is_token, tf.cumsum(tf.cast(is_token, tf.int32)) - 1, blocks * size)
        by_hidden = tf.transpose(tf.gather(by_rows, number), [1, 0, 2])
        return tf.reshape(by_hidden, tf.shape(hidden)), tf.cast(by_columns, columns.dtype), sums

    def _of_rows(self, labels, rows, columns, total_tokens):
        """Of labels `[M]` and rows `[P, M, D]`: as `gradients`."""
        flat = tf.reshape(rows, [-1, rows.shape[-1]])
        logits = tf.matmul(flat, columns)
        logits = tf.reshape(logits, [*tf.unstack(tf.shape(rows)[:2]), columns.shape[-1]])
        of_tokens = tf.function(self.of_tokens, jit_compile=self.is_compiled, autograph=False)
        gradient, sums = of_tokens(labels, logits, total_tokens)
        gradient = tf.reshape(gradient, [-1, columns.shape[-1]])
        by_rows = tf.reshape(tf.matmul(gradient, columns, transpose_b=True), tf.shape(rows))
        return by_rows, tf.matmul(flat, gradient, transpose_a=True), sums

    def of_tokens(
        self, labels: tf.Tensor, logits: tf.Tensor, total_tokens: tf.Tensor
    ) -> tuple[tf.Tensor, Sums]:
        """Of some tokens.

        Args:
            labels: int `[M]`.
            logits: `[P, M, V]`.
            total_tokens: see `gradients`.

        Returns:
            The gradient by the logits, `[P, M, V]`, and float32 sums, which are means over the
            passes: `loss` and `nll`, the cross-entropy without smoothing, in nats, and `correct`,
            the tokens that are the most probable ones.
        """
        passes = 2 if self.r_drop else 1
        labels = tf.tile(labels[None], [passes, 1])
        is_token = labels != self.pad_id
        dtype = logits.dtype
        logits = _widened(logits)
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = smoothed_cross_entropy(labels, logits, self.smoothing, self.pad_id)
            loss = tf.reduce_sum(losses) / passes
            if self.r_drop:
                between = tf.where(is_token[0], divergence(*tf.unstack(logits, 2)), 0.0)
                loss += self.r_drop / 2 * tf.reduce_sum(between)
            scaled = self.scale(loss / total_tokens)
        # The most probable token, without an argmax, which is slow on CPUs: by the label's logit
        # and the largest, both of which XLA has from the loss.
        is_correct = is_token & (number_at(logits, labels) >= tf.reduce_max(logits, axis=-1))
        nll = smoothed_cross_entropy(labels, logits, 0.0, self.pad_id)
        return _narrowed(tape.gradient(scaled, logits), dtype), {
            "loss": loss,
            "nll": tf.reduce_sum(nll) / passes,
            "correct": tf.reduce_sum(tf.cast(is_correct, tf.float32)) / passes,
        }


def divergence(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Of the distributions P and Q of two passes, `(KL(P || Q) + KL(Q || P)) / 2`.

    Args:
        first, second: their logits `[B, T, V]`.

    Returns:
        float32 `[B, T]`, in nats.

    Reference: Wu et al. 2021, R-Drop: Regularized Dropout for Neural Networks, Eq. 2.
    """
    log_p, log_q = (tf.nn.log_softmax(tf.cast(logits, tf.float32)) for logits in (first, second))
    return tf.reduce_sum((tf.exp(log_p) - tf.exp(log_q)) * (log_p - log_q), axis=-1) / 2


def _widened(logits):
    """In float32.

    On CPUs XLA takes twice as long to convert bfloat16, and rounds after each number of a maximum,
    as to move the bits, of which bfloat16 has the upper half.
    """
    if logits.dtype != tf.bfloat16:
        return tf.cast(logits, tf.float32)
    bits = tf.cast(tf.bitcast(logits, tf.uint16), tf.uint32)
    return tf.bitcast(tf.bitwise.left_shift(bits, 16), tf.float32)


def _narrowed(gradient, dtype):
    """The float32 gradient in another type, rounded to nearest, halves to even."""
    if dtype != tf.bfloat16:
        return tf.cast(gradient, dtype)
    bits = tf.bitcast(gradient, tf.uint32)
    last = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, 16), tf.ones_like(bits))
    rounded = tf.bitwise.right_shift(bits + 0x7FFF + last, 16)
    return tf.bitcast(tf.cast(rounded, tf.uint16), tf.bfloat16)
