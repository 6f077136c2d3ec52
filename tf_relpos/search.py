"""Search over a step function: what `tf_relpos.beams` and `tf_relpos.sampling` want of a model, and
what they share.

The searches see no model class. They want an object with

    config.pad_id, config.start_id, config.end_id
    encode(source_ids [B, S])                       -> memory, whatever `step` wants of the source:
                                                       a tree of tensors [B, ...], or of any shape
                                                       below a key "weights"
    initial_cache(memory, beam_size, max_length)    -> cache, a tree of tensors [B, K, ...], or
                                                       [B, ...] below a key "shared"
    step(token_ids [B, K], cache, index, memory)    -> logits [B, K, V], cache

with ids in int32. The start may be the padding or the end, as it is in models of others, and the
padding the end. `max_length`, L, is an int where it is known and a scalar int32 tensor in a graph
that will know it when it runs: the model may then let its cache grow from step to step, below a key
"growing". That key says that shapes may change, so that sentences that are done leave the batch.

They are inference: on PyTorch nothing is recorded for gradients, as in Keras's `predict`.

Axes: B batch, S source positions, K hypotheses, L generated tokens, V vocabulary.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tf_relpos.candidates import special_ids
from tf_relpos.checks import check_shape, check_whole
from tf_relpos.tensor_checks import check_ids, check_size
from tf_relpos.tensor_ops import Tensor, shape_of

SHARED = "shared"  # of all hypotheses of a sentence, whose order they keep
GROWING = "growing"  # longer at each step, which XLA does not know
WEIGHTS = "weights"  # of all sentences
EXTRA_LENGTH = 50  # a translation may be this much longer than its source, as in tensor2tensor
_SEARCHED = ("config", "encode", "initial_cache", "step")  # what a model is searched with


def without_gradients(search: Callable[..., Any]) -> Callable[..., Any]:
    """A search of which PyTorch records nothing."""

    @functools.wraps(search)
    def searched(*args: Any, **kwargs: Any) -> Any:
        if keras.backend.backend() != "torch":
            return search(*args, **kwargs)
        with sys.modules["torch"].no_grad():
            return search(*args, **kwargs)

    return searched


def source_of(model: Any, source_ids: Any, max_length: Any) -> tuple[Tensor, Tensor, Any]:
    """The source, int32 `[B, S]`; how many tokens each sentence may take, int32 `[B]`; and the
    most, L."""
    if missing := [name for name in _SEARCHED if not hasattr(model, name)]:
        raise ValueError(
            f"`model` must be a Transformer, or have {', '.join(_SEARCHED)} as it has. "
            f"Received: model={model!r}, without {missing[0]}"
        )
    for name in ("pad_id", "start_id", "end_id"):
        check_whole(f"model.config.{name}", getattr(model.config, name, None), least=0)
    source_ids = check_ids("source_ids", source_ids, getattr(model.config, "vocabulary_size", None))
    check_shape("source_ids", source_ids.shape, (None, None))
    source_ids = ops.cast(source_ids, "int32")
    B, S = shape_of(source_ids)
    if max_length is not None:
        L = check_size("max_length", max_length)
        return source_ids, ops.full((B,), L, dtype="int32"), L
    lengths = ops.sum(ops.cast(source_ids != model.config.pad_id, "int32"), axis=1)
    return source_ids, lengths + EXTRA_LENGTH, S + EXTRA_LENGTH


def next_logits(
    model: Any, tokens: Tensor, cache: Any, index: Tensor, memory: Any
) -> tuple[Tensor, Any]:
    """The logits `[B, K, V]` and the cache that the model makes of the last tokens `[B, K]`."""
    found = model.step(tokens, cache, index, memory)
    if not (isinstance(found, (tuple, list)) and len(found) == 2):
        raise ValueError(f"`model.step` must give back logits and the cache. Received: {found!r}")
    logits, cache = found
    check_shape("logits", logits.shape, (None, None, None))
    if max(special_ids(model)) >= logits.shape[-1]:
        raise ValueError(
            f"`model.config` must have ids below the number of logits, {logits.shape[-1]}. "
            f"Received: pad_id, start_id, end_id = {special_ids(model)}"
        )
    return logits, cache


def weights_read_once(model: Any) -> keras.StatelessScope:
    """A scope in which a loop finds the weights as they were before it, and reads no variables."""
    # Copies, as a tensor made of a variable is read where it is used, which is in the loop.
    weights = [w for w in getattr(model, "weights", ()) if isinstance(w, keras.Variable)]
    return keras.StatelessScope([(weight, ops.copy(weight)) for weight in weights])


def written(ids: Tensor, tokens: Tensor, index: Tensor) -> Tensor:
    """`ids` `[..., L]` with `tokens` `[...]` at position `index`."""
    here = ops.arange(shape_of(ids)[-1], dtype="int32") == index
    return ops.where(here, ops.expand_dims(tokens, -1), ids)
