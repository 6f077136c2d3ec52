"""A model without a network for the search's tests, and searches over it as plain Python.

The toy's logits depend on the whole prefix: its cache is a number that every token changes. A
search that hands a hypothesis the cache of another one goes astray.
"""

import itertools
from types import SimpleNamespace

import numpy as np
from keras import ops

PAD, UNKNOWN, START, END = range(4)
STATES = 97


class Toy:
    """Answers the calls of a search from a table of logits `[STATES, V]`."""

    def __init__(self, rng, vocabulary_size=7, end_bonus=0.0, spread=1.5):
        self.config = SimpleNamespace(pad_id=PAD, start_id=START, end_id=END)
        self.table = (spread * rng.normal(size=(STATES, vocabulary_size))).astype("float32")
        self.table[:, END] += end_bonus
        self.table[:, UNKNOWN] = -1e9
        self.steps = 0

    def encode(self, source_ids):
        return ops.sum(ops.cast(source_ids, "int32"), axis=1)

    def initial_cache(self, memory, beam_size, max_length):
        state = ops.tile(ops.expand_dims(memory, 1), (1, beam_size)) * 0
        return {"state": state, "tokens": ops.expand_dims(state, -1)}

    def step(self, token_ids, cache, index, memory):
        self.steps += 1
        token_ids = ops.cast(token_ids, "int32")
        state = (cache["state"] * 5 + token_ids * 11 + index) % STATES
        row = (state + ops.expand_dims(memory, 1) * 29) % STATES
        return ops.take(ops.convert_to_tensor(self.table), row, axis=0), {
            "state": state,
            "tokens": cache["tokens"] + ops.expand_dims(token_ids, -1),
        }

    def log_probs(self, source, prefix):
        """Log-probabilities `[V]` of the token after `prefix`, in float64."""
        state = 0
        for index, token in enumerate([START, *prefix]):
            state = (state * 5 + token * 11 + index) % STATES
        logits = self.table[(state + sum(source) * 29) % STATES].astype("float64")
        log_probs = logits - np.log(np.sum(np.exp(logits)))
        log_probs[[PAD, START]] = -np.inf
        return log_probs

    def log_prob(self, source, sequence):
        return sum(self.log_probs(source, sequence[:t])[token] for t, token in enumerate(sequence))


class Scripted:
    """A model whose next token depends on the step alone; `script` `[L, V]` holds probabilities."""

    config = SimpleNamespace(pad_id=PAD, start_id=START, end_id=END)

    def __init__(self, script):
        self.logits = np.log(np.asarray(script, "float32") + 1e-9)

    def encode(self, source_ids):
        return source_ids

    def initial_cache(self, memory, beam_size, max_length):
        return {"nothing": ops.tile(memory[:, :1], (1, beam_size))}

    def step(self, token_ids, cache, index, memory):
        logits = ops.take(ops.convert_to_tensor(self.logits), index, axis=0)
        rows = ops.expand_dims(ops.zeros_like(token_ids, dtype="float32"), -1)
        return rows + logits, cache


def score(log_prob, length, alpha):
    return log_prob / ((5 + length) / 6) ** alpha


def exhaustive(toy, source, limit, alpha):
    """Every sequence of at most `limit` tokens that ends, as (score, tokens), best first."""
    words = range(END + 1, toy.table.shape[1])
    sequences = [
        (*prefix, END)
        for length in range(limit)
        for prefix in itertools.product(words, repeat=length)
    ]
    scored = [(score(toy.log_prob(source, s), len(s), alpha), s) for s in sequences]
    return sorted(scored, reverse=True)


def beam(toy, source, beam_size, limit, alpha, min_length=0):
    """Beam search without any early stop, hypothesis by hypothesis."""
    live, finished = [(0.0, ())], []
    for step in range(1, limit + 1):
        extensions = []
        for log_prob, tokens in live:
            following = toy.log_probs(source, tokens)
            if step <= min_length:
                following[END] = -np.inf
            choices = np.flatnonzero(np.isfinite(following))
            if step == limit:
                following, choices = toy.log_probs(source, tokens), [END]
            extensions += [(log_prob + following[v], (*tokens, int(v))) for v in choices]
        extensions = sorted(extensions, reverse=True)[:beam_size]
        finished += [(score(p, step, alpha), s) for p, s in extensions if s[-1] == END]
        live = [(p, s) for p, s in extensions if s[-1] != END]
    return sorted(finished, reverse=True)[:beam_size]


def trimmed(ids):
    """Tokens of one row without its padding, which may stand at the end alone."""
    tokens = [int(token) for token in ids]
    while tokens and tokens[-1] == PAD:
        tokens.pop()
    assert PAD not in tokens
    return tuple(tokens)
