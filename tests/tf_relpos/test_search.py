"""Greedy, beam and sampling search against exhaustive and loop-by-loop search on a toy model."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

from tests.support.layer_checks import (
    BACKEND,
    COMPILED_MODES,
    MODES,
    assert_close,
    compile_function,
    to_numpy,
)
from tests.support.search_toys import END, PAD, START, Scripted, Toy, beam, exhaustive, trimmed
from tf_relpos import (
    Transformer,
    TransformerConfig,
    beam_search,
    greedy_search,
    sample,
)
from tf_relpos.candidates import top_k

INTEGERS = ("int64", "int8", "uint8", "uint32")
NO_NUMBERS = (float("nan"), float("inf"), "0.6", None, True)
SOURCES = [[4, 6, 3], [5, 3], [6, 4, 5, 4, 3], [8, 3]]


def padded(sources, width=5):
    return np.array([[*source, *[PAD] * (width - len(source))] for source in sources], "int32")


def check_hypotheses(ids, scores, expected):
    ids, scores = to_numpy(ids), to_numpy(scores)
    assert ids.dtype == np.int32
    assert scores.dtype == np.float32
    for rows, row_scores, hypotheses in zip(ids, scores, expected, strict=True):
        assert [trimmed(row) for row in rows[: len(hypotheses)]] == [s for _, s in hypotheses]
        assert_close(row_scores[: len(hypotheses)], [score for score, _ in hypotheses])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("mode", MODES)
def test_wide_beam_is_exhaustive_search_down_to_the_last_hypothesis(rng, mode, alpha):
    toy = Toy(rng)
    run = compile_function(
        lambda t: beam_search(toy, t["source_ids"], beam_size=40, alpha=alpha, max_length=4),
        mode,
        {"source_ids": padded(SOURCES)},
    )
    expected = [exhaustive(toy, source, 4, alpha) for source in SOURCES]
    assert {len(hypotheses) for hypotheses in expected} == {40}
    ids, scores = run({"source_ids": padded(SOURCES)})
    assert ids.shape == (len(SOURCES), 40, 4)
    check_hypotheses(ids, scores, expected)


@pytest.mark.parametrize("end_bonus", [-1.0, 0.0, 2.0])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("beam_size,nbest", [(1, 1), (2, 2), (4, 1), (4, 3), (11, None)])
def test_stopping_early_never_changes_the_result(rng, beam_size, nbest, alpha, end_bonus):
    """The plain search goes on to the limit whatever it has found."""
    toy = Toy(rng, vocabulary_size=13, end_bonus=end_bonus)
    expected = [beam(toy, source, beam_size, 11, alpha)[:nbest] for source in SOURCES]
    ids, scores = beam_search(toy, padded(SOURCES), beam_size, alpha, max_length=11, nbest=nbest)
    assert ids.shape == (len(SOURCES), nbest or beam_size, 11)
    check_hypotheses(ids, scores, expected)


@pytest.mark.parametrize("min_length", [1, 2, 3, 20])
@pytest.mark.parametrize("mode", MODES)
def test_no_translation_is_shorter_than_may_be(rng, mode, min_length):
    """Nor is a hypothesis lost by it; a limit of fewer tokens comes first."""
    toy = Toy(rng, end_bonus=6.0)
    arrays = {"source_ids": padded(SOURCES)}
    for beam_size, limit in ((1, 5), (3, 5), (8, 4)):
        expected = [beam(toy, source, beam_size, limit, 0.6, min_length) for source in SOURCES]
        run = compile_function(
            lambda t, K=beam_size, L=limit: beam_search(
                toy, t["source_ids"], K, max_length=L, min_length=min_length
            ),
            mode,
            arrays,
        )
        check_hypotheses(*run(arrays), expected)
        shortest = min(min_length, limit - 1) + 1  # the end counts
        assert min(len(ids) for found in expected for _, ids in found) == shortest
    assert to_numpy(beam_search(toy, arrays["source_ids"], 3)[0])[:, 0, 0].tolist().count(END) > 1


def test_a_long_hypothesis_may_still_win_by_its_length():
    """Two short ones are finished after two steps, and a third with P = 0.075 needs 17 tokens.

    log 0.075 / (22/6)^1.5 = -0.37 beats log 0.425 / (7/6)^1.5 = -0.68, though after three tokens
    it would be log 0.075 / (8/6)^1.5 = -1.68.
    """
    first, second = [0, 0, 0, 0.5, 0.5], [0, 0, 0, 0.85, 0.15]
    script = [first, second, *[[0, 0, 0, 0, 1]] * 14, [0, 0, 0, 1, 0]]
    source_ids = np.array([[4, END]], "int32")
    found = beam_search(Scripted(script), source_ids, beam_size=2, alpha=1.5, max_length=17)
    ids, scores = (to_numpy(x)[0] for x in found)
    assert [trimmed(row) for row in ids] == [(*[4] * 16, END), (4, END)]
    assert_close(scores, [np.log(0.075) / (22 / 6) ** 1.5, np.log(0.425) / (7 / 6) ** 1.5])


@pytest.mark.parametrize("mode", COMPILED_MODES)
def test_compiled_equals_eager(rng, mode):
    toy = Toy(rng, vocabulary_size=13)
    arrays = {"source_ids": padded(SOURCES)}
    expected = beam_search(toy, arrays["source_ids"])
    found = compile_function(lambda t: beam_search(toy, t["source_ids"]), mode, arrays)(arrays)
    np.testing.assert_array_equal(found[0], to_numpy(expected[0]))
    assert_close(found[1], expected[1])


@pytest.mark.skipif(BACKEND == "jax", reason="traces a step, so that steps cannot be counted")
def test_stops_when_nothing_can_win_any_more(rng):
    """Over 70 tokens are allowed; a model that likes to end needs few steps."""
    toy = Toy(rng, end_bonus=6.0)
    beam_search(toy, padded(SOURCES, 23), beam_size=2)
    assert 1 <= toy.steps <= 15


@pytest.mark.skipif(BACKEND == "jax", reason="traces a step, so that steps cannot be counted")
def test_the_best_alone_is_found_in_fewer_steps(rng):
    toy = Toy(rng, end_bonus=3.0)
    steps = []
    for nbest in (1, 2, 4):
        before = toy.steps
        beam_search(toy, padded(SOURCES, 23), beam_size=4, nbest=nbest)
        steps.append(toy.steps - before)
    assert steps == sorted(steps)
    assert 1 <= steps[0] < steps[2] < 70


@pytest.mark.parametrize("mode", MODES)
def test_fewer_are_the_first_of_all(rng, mode):
    """Of sentences that are done at different times."""
    toy = Toy(rng, vocabulary_size=13, end_bonus=1.0)
    arrays = {"source_ids": padded(SOURCES)}
    ids, scores = (to_numpy(x) for x in beam_search(toy, arrays["source_ids"], 5))
    for nbest in (1, 2):
        run = compile_function(
            lambda t, n=nbest: beam_search(toy, t["source_ids"], 5, nbest=n), mode, arrays
        )
        found_ids, found_scores = run(arrays)
        np.testing.assert_array_equal(found_ids, ids[:, :nbest])
        assert_close(found_scores, scores[:, :nbest])


@pytest.mark.tensorflow_only
def test_a_graph_may_learn_how_many_are_wanted_when_it_runs(rng):
    import tensorflow as tf

    toy = Toy(rng, vocabulary_size=13, end_bonus=1.0)
    source_ids = padded(SOURCES)
    expected = to_numpy(beam_search(toy, source_ids, 5)[0])
    function = tf.function(lambda K, n: beam_search(toy, source_ids, K, nbest=n)[0])
    for nbest in (1, 3, 5):
        found = function(tf.constant(5), tf.constant(nbest))
        np.testing.assert_array_equal(found, expected[:, :nbest])


@pytest.mark.tensorflow_only
def test_sentences_that_are_done_leave_where_a_graph_does_not_know_their_number(rng):
    """Half of them at a time, for a smaller batch; their results stay in their places."""
    import tensorflow as tf

    sizes = []

    class Counting(Toy):
        def initial_cache(self, memory, *others):
            grows = {"growing": ops.expand_dims(memory, 1)}
            return {**super().initial_cache(memory, *others), "shared": grows}

        def step(self, token_ids, cache, *others):
            tf.py_function(lambda tokens: sizes.append(len(tokens)), [token_ids], [])
            logits, new = super().step(token_ids, cache, *others)
            return logits, {**new, "shared": cache["shared"]}

    source_ids = padded(SOURCES * 4, 11)
    source_ids[:, 8] = rng.integers(4, 7, len(source_ids))  # so that they differ
    toy = Counting(rng, vocabulary_size=13, end_bonus=1.0)
    expected = beam_search(toy, source_ids, beam_size=3)
    in_one = list(sizes)
    sizes.clear()
    signature = [tf.TensorSpec([None, None], "int32")]
    function = tf.function(lambda ids: beam_search(toy, ids, 3), input_signature=signature)
    ids, scores = function(source_ids)
    np.testing.assert_array_equal(ids, to_numpy(expected[0]))
    assert_close(scores, expected[1])
    assert len(sizes) == len(in_one)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 16 and sizes[-1] <= 8
    assert sum(sizes) < sum(in_one)
    assert function(source_ids[:0])[0].shape == (0, 3, 61)


@pytest.mark.parametrize("end_bonus", [0.0, 2.0])
def test_beam_of_one_is_greedy(rng, end_bonus):
    toy = Toy(rng, vocabulary_size=13, end_bonus=end_bonus)
    ids, scores = beam_search(toy, padded(SOURCES), beam_size=1, alpha=0.0)
    greedy_ids, greedy_scores = greedy_search(toy, padded(SOURCES))
    np.testing.assert_array_equal(to_numpy(ids)[:, 0], to_numpy(greedy_ids))
    assert_close(to_numpy(scores)[:, 0], greedy_scores)


def test_greedy_takes_the_best_token_at_each_step(rng):
    toy = Toy(rng, vocabulary_size=13)
    ids, scores = (to_numpy(x) for x in greedy_search(toy, padded(SOURCES), max_length=7))
    for source, row, score in zip(SOURCES, ids, scores, strict=True):
        tokens = trimmed(row)
        for t, token in enumerate(tokens):
            best = END if t == 6 else int(np.argmax(toy.log_probs(source, tokens[:t])))
            assert token == best
        assert tokens[-1] == END
        assert_close(score, toy.log_prob(source, tokens))


def searches(toy, source_ids):
    yield beam_search(toy, source_ids, beam_size=3)
    yield greedy_search(toy, source_ids)


@pytest.mark.parametrize("end_bonus", [-9.0, 0.0, 2.0])
def test_a_sentence_does_not_depend_on_its_batch_or_padding(rng, end_bonus):
    toy = Toy(rng, vocabulary_size=13, end_bonus=end_bonus)
    together = list(searches(toy, padded(SOURCES, 11)))
    for b, source in enumerate(SOURCES):
        for (ids, scores), whole in zip(searches(toy, np.array([source])), together, strict=True):
            ids, whole_ids = to_numpy(ids)[0], to_numpy(whole[0])[b]
            for alone, in_batch in zip(np.atleast_2d(ids), np.atleast_2d(whole_ids), strict=True):
                assert trimmed(alone) == trimmed(in_batch)
            assert_close(to_numpy(scores)[0], to_numpy(whole[1])[b])


def test_limit_is_the_source_s_own_length_plus_fifty(rng):
    """The end id of the source counts, padding does not; the end forced at the limit counts."""
    toy = Toy(rng, end_bonus=-1e3)
    for ids, _ in searches(toy, padded(SOURCES)):
        ids = to_numpy(ids)
        assert ids.shape[-1] == 55
        for source, row in zip(SOURCES, ids.reshape(len(SOURCES), -1, 55)[:, 0], strict=True):
            tokens = trimmed(row)
            assert len(tokens) == len(source) + 50
            assert tokens.index(END) == len(tokens) - 1


def test_max_length_of_one_is_the_end_alone(rng):
    toy = Toy(rng)
    ids, scores = greedy_search(toy, padded(SOURCES), max_length=1)
    np.testing.assert_array_equal(to_numpy(ids), np.full((len(SOURCES), 1), END))
    assert_close(scores, [toy.log_probs(source, ())[END] for source in SOURCES])


def test_padding_and_start_are_never_generated(rng):
    toy = Toy(rng)
    toy.table[:, [PAD, START]] = 20.0
    for ids, _ in searches(toy, padded(SOURCES)):
        for row in to_numpy(ids).reshape(-1, 55):
            assert START not in trimmed(row)


def test_fewer_hypotheses_than_beams(rng):
    """Two sequences of at most two tokens exist; the other places are empty."""
    toy = Toy(rng, vocabulary_size=5)
    expected = [exhaustive(toy, source, 2, 0.6) for source in SOURCES]
    ids, scores = beam_search(toy, padded(SOURCES), beam_size=3, max_length=2)
    check_hypotheses(ids, scores, [hypotheses[:2] for hypotheses in expected])
    assert not np.any(to_numpy(scores)[:, 2] > -1e6)


@pytest.mark.parametrize("mode", MODES)
def test_sampling_a_token_at_random_follows_the_model(rng, mode):
    toy = Toy(rng)
    sources = np.tile(padded(SOURCES[:1]), (4001, 1))
    run = compile_function(
        lambda t: sample(toy, t["source_ids"], temperature=2.0, max_length=2, seed=5),
        mode,
        {"source_ids": sources},
    )
    ids, scores = run({"source_ids": sources})
    logits = toy.log_probs(SOURCES[0], ()) / 2.0
    expected = np.exp(logits) / np.sum(np.exp(logits))
    counts = np.bincount(ids[:, 0], minlength=len(expected)) / len(ids)
    assert np.max(np.abs(counts - expected)) < 5 * np.sqrt(0.25 / len(ids))
    for row, score in zip(ids[:7], scores[:7], strict=True):
        assert_close(score, toy.log_prob(SOURCES[0], trimmed(row)))


def test_sampling_from_the_top_one_or_cold_is_greedy(rng):
    toy = Toy(rng, vocabulary_size=13)
    expected = to_numpy(greedy_search(toy, padded(SOURCES))[0])
    for options in ({"top_k": 1}, {"temperature": 1e-4}, {"top_p": 1e-6}):
        np.testing.assert_array_equal(
            to_numpy(sample(toy, padded(SOURCES), **options)[0]), expected
        )


def test_sampling_from_the_top_two_takes_no_other(rng):
    toy = Toy(rng)
    sources = np.tile(padded(SOURCES[:1]), (97, 1))
    ids = to_numpy(sample(toy, sources, top_k=2, max_length=3, seed=1)[0])
    best = set(np.argsort(toy.log_probs(SOURCES[0], ()))[-2:])
    assert set(ids[:, 0]) == best


@pytest.mark.parametrize("top_k", [None, 4])
@pytest.mark.parametrize("mode", MODES)
def test_sampling_from_a_nucleus_follows_the_model_within_it(rng, mode, top_k):
    toy = Toy(rng)
    sources = np.tile(padded(SOURCES[:1]), (4001, 1))
    probs = np.exp(toy.log_probs(SOURCES[0], ()) / 2.0)
    order = np.argsort(-probs)[:top_k]
    nucleus = order[:3]  # what the third begins, p ends
    p = (np.sum(probs[order[:2]]) + probs[order[2]] / 2) / np.sum(probs[order])
    options = {"temperature": 2.0, "top_k": top_k, "top_p": p, "max_length": 2, "seed": 5}
    run = compile_function(
        lambda t: sample(toy, t["source_ids"], **options)[0], mode, {"source_ids": sources}
    )
    ids = run({"source_ids": sources})
    expected = np.zeros_like(probs)
    expected[nucleus] = probs[nucleus] / np.sum(probs[nucleus])
    counts = np.bincount(ids[:, 0], minlength=len(expected)) / len(ids)
    assert np.all(counts[expected == 0] == 0)
    assert np.max(np.abs(counts - expected)) < 5 * np.sqrt(0.25 / len(ids))


def test_a_seed_gives_the_same_samples_again(rng):
    toy = Toy(rng, vocabulary_size=13)
    sources = np.tile(padded(SOURCES), (5, 1))
    one, same, other = (to_numpy(sample(toy, sources, seed=seed)[0]) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.any(one != other)


@pytest.mark.parametrize("mode", MODES)
def test_numbers_of_ones_own_decide_the_samples(rng, mode):
    """So that a sentence gets the same one alone as in a batch with longer ones."""
    toy = Toy(rng, vocabulary_size=13)
    sources = padded(SOURCES)
    arrays = {
        "source_ids": sources,
        "uniforms": rng.random((len(sources), sources.shape[1] + 50), dtype="float32"),
    }
    together = compile_function(
        lambda t: sample(toy, t["source_ids"], uniforms=t["uniforms"])[0], mode, arrays
    )(arrays)
    for row, source, numbers in zip(together, SOURCES, arrays["uniforms"], strict=True):
        alone = sample(toy, np.array([source]), uniforms=numbers[None, : len(source) + 50])[0]
        assert trimmed(row) == trimmed(to_numpy(alone)[0])
    # The first number alone decides the first token: the inverse of its distribution.
    for number in (0.0, 0.3, 0.999):
        first = np.full((1, 3), number, "float32")
        ids = sample(toy, sources[:1], max_length=3, uniforms=first)[0]
        cumulative = np.cumsum(np.exp(toy.log_probs(SOURCES[0], ())))
        assert to_numpy(ids)[0, 0] == np.searchsorted(cumulative, number * cumulative[-1], "right")


def test_numbers_that_do_not_fit_are_refused(rng):
    toy, numbers = Toy(rng), np.zeros((1, 3), "float32")
    with pytest.raises(ValueError, match="`uniforms` must have the shape .*1, 4"):
        sample(toy, padded(SOURCES[:1]), max_length=4, uniforms=numbers)
    for wrong in (-0.5, 1.0, np.nan):
        with pytest.raises(ValueError, match=f"`uniforms` must be from 0 to below 1.*{wrong}"):
            sample(toy, padded(SOURCES[:1]), max_length=3, uniforms=numbers + wrong)
    with pytest.raises(ValueError, match="`uniforms` must be numbers.*'a'"):
        sample(toy, padded(SOURCES[:1]), max_length=3, uniforms="a")
    with pytest.raises(ValueError, match="`uniforms` take the place of `seed`"):
        sample(toy, padded(SOURCES[:1]), max_length=3, uniforms=numbers, seed=1)


@pytest.mark.parametrize("mode", MODES)
def test_of_equal_tokens_the_top_two_are_two(mode):
    """Five tokens are equally likely; a threshold would have let all of them pass."""
    sources = np.tile(padded(SOURCES[:1]), (97, 1))
    script = Scripted([[0, 0, 0, 0, 0.2, 0.2, 0.2, 0.2, 0.2]] * 2)
    run = compile_function(
        lambda t: sample(script, t["source_ids"], top_k=2, max_length=2, seed=1),
        mode,
        {"source_ids": sources},
    )
    ids, _ = run({"source_ids": sources})
    assert set(ids[:, 0]) == {4, 5}


@pytest.mark.parametrize("temperature", [1e-39, 1e-45, 1e38, np.float32(2), 3])
@pytest.mark.parametrize("mode", MODES)
def test_any_temperature_draws_tokens_that_may_follow(rng, mode, temperature):
    toy = Toy(rng, vocabulary_size=13)
    arrays = {"source_ids": padded(SOURCES)}
    run = compile_function(
        lambda t: sample(toy, t["source_ids"], temperature=temperature, seed=5), mode, arrays
    )
    ids, scores = run(arrays)
    assert np.all(np.isfinite(scores))
    for row, source in zip(ids, SOURCES, strict=True):
        assert 1 <= len(trimmed(row)) <= len(source) + 50
    if temperature < 1e-30:
        np.testing.assert_array_equal(ids, to_numpy(greedy_search(toy, padded(SOURCES))[0]))


@pytest.mark.parametrize("mode", MODES)
def test_temperature_and_alpha_may_be_tensors(rng, mode):
    toy = Toy(rng)
    arrays = {"source_ids": padded(SOURCES), "alpha": np.float32(0.3), "cold": np.float32(1e-4)}

    def both(t):
        cold = sample(toy, t["source_ids"], temperature=t["cold"], max_length=4, seed=5)
        return beam_search(toy, t["source_ids"], alpha=t["alpha"], max_length=4), cold

    found, cold = compile_function(both, mode, arrays)(arrays)
    expected = beam_search(toy, padded(SOURCES), alpha=0.3, max_length=4)
    np.testing.assert_array_equal(found[0], to_numpy(expected[0]))
    assert_close(found[1], expected[1])
    greedy = greedy_search(toy, padded(SOURCES), max_length=4)
    np.testing.assert_array_equal(cold[0], to_numpy(greedy[0]))


def all_searches(toy, source_ids, **options):
    yield beam_search(toy, source_ids, beam_size=2, **options)
    yield greedy_search(toy, source_ids, **options)
    yield sample(toy, source_ids, seed=3, **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [0, 1])
def test_few_sentences_or_none(rng, mode, rows):
    toy = Toy(rng)
    arrays = {"source_ids": padded(SOURCES)[:rows]}
    run = compile_function(
        lambda t: list(all_searches(toy, t["source_ids"], max_length=4)), mode, arrays
    )
    for ids, scores in run(arrays):
        assert ids.shape[0] == scores.shape[0] == rows
        assert ids.shape[-1] == 4


@pytest.mark.parametrize("floatx", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "mode", ["eager", pytest.param("graph", marks=pytest.mark.tensorflow_only)]
)
def test_searches_do_not_depend_on_keras_s_default_float(rng, mode, floatx):
    toy = Toy(rng)
    expected = to_numpy(list(all_searches(toy, padded(SOURCES), max_length=6)))
    before = keras.config.floatx()
    keras.config.set_floatx(floatx)

    def search(inputs):
        return list(all_searches(toy, inputs["sources"], max_length=6))

    try:
        arrays = {"sources": padded(SOURCES)}
        if mode == "graph":
            search = compile_function(search, mode, arrays, {"sources": [None, None]})
        found = to_numpy(search(arrays))
    finally:
        keras.config.set_floatx(before)
    for (ids, scores), (expected_ids, expected_scores) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ids, expected_ids)
        assert scores.dtype == np.float32
        assert_close(scores, expected_scores, tolerance=1e-6)


@pytest.mark.parametrize("make", [np.int64, np.int8, np.uint8, keras.ops.convert_to_tensor])
def test_sizes_may_be_whole_numbers_of_any_kind(rng, make):
    toy = Toy(rng)
    expected = beam_search(toy, padded(SOURCES), beam_size=2, max_length=4)
    found = beam_search(toy, padded(SOURCES), beam_size=make(2), max_length=make(4))
    np.testing.assert_array_equal(to_numpy(found[0]), to_numpy(expected[0]))
    ids = sample(toy, padded(SOURCES), top_k=make(2), max_length=make(4), seed=make(1))[0]
    same = sample(toy, padded(SOURCES), top_k=2, max_length=4, seed=1)[0]
    np.testing.assert_array_equal(to_numpy(ids), to_numpy(same))


@pytest.mark.parametrize("number", [np.float64(0.6), np.float32(0.6)])
def test_alpha_may_be_numpy_s(rng, number):
    toy = Toy(rng)
    found, expected = (beam_search(toy, padded(SOURCES), alpha=a) for a in (number, 0.6))
    assert_close(found[1], expected[1], tolerance=1e-6)


@pytest.mark.parametrize(
    "convert", [lambda ids: ids.tolist(), *(lambda ids, d=d: ids.astype(d) for d in INTEGERS)]
)
def test_sources_may_be_lists_and_integers_of_any_size(rng, convert):
    toy = Toy(rng)
    found, expected = (
        all_searches(toy, ids) for ids in (convert(padded(SOURCES)), padded(SOURCES))
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(to_numpy(one[0]), to_numpy(other[0]))


BAD_ARGUMENTS = [
    (beam_search, {"beam_size": 0}, "`beam_size` must be a whole number >= 1.*beam_size=0"),
    (beam_search, {"beam_size": 2.5}, "beam_size.*2.5"),
    (beam_search, {"beam_size": True}, "beam_size.*True"),
    (beam_search, {"beam_size": np.array([2])}, "beam_size"),
    (beam_search, {"nbest": 0}, "`nbest` must be a whole number >= 1.*nbest=0"),
    (beam_search, {"beam_size": 3, "nbest": 4}, "`nbest` must be at most `beam_size`, 3.*nbest=4"),
    (beam_search, {"max_length": 0}, "max_length.*0"),
    (beam_search, {"max_length": np.int64(-1)}, "max_length.*-1"),
    (beam_search, {"max_length": "4"}, "max_length='4'"),
    (greedy_search, {"max_length": 0}, "max_length.*0"),
    *((beam_search, {"alpha": a}, f"`alpha` must be .*{a}") for a in NO_NUMBERS),
    (beam_search, {"alpha": 10.5}, "`alpha` must be a number from -10 to 10.*alpha=10.5"),
    *((sample, {"temperature": t}, f"`temperature` must be .*{t}") for t in NO_NUMBERS),
    (sample, {"temperature": 0.0}, "temperature.*0"),
    (sample, {"temperature": -1}, "temperature.*-1"),
    (sample, {"top_k": 0}, "top_k.*0"),
    (sample, {"top_k": 2.0}, "top_k.*2.0"),
    *((sample, {"top_p": p}, f"`top_p` must be .*{p}") for p in (0, 1.01, -0.5, "a", np.nan)),
    (sample, {"seed": -1}, "`seed` must be a whole number >= 0.*-1"),
    (sample, {"seed": 1.5}, "seed=1.5"),
]


@pytest.mark.parametrize("search,bad,message", BAD_ARGUMENTS)
def test_bad_arguments_are_refused(rng, search, bad, message):
    with pytest.raises(ValueError, match=message):
        search(Toy(rng), padded(SOURCES), **bad)


@pytest.mark.parametrize("search", [beam_search, greedy_search, sample])
@pytest.mark.parametrize("model", [None, keras.Sequential()])
def test_what_is_no_model_to_search_with_is_refused(search, model):
    with pytest.raises(ValueError, match="`model` must be a Transformer, or have config, encode, "):
        search(model, padded(SOURCES))


def with_ids(model, **ids):
    model.config = SimpleNamespace(**{**vars(model.config), **ids})
    return model


@pytest.mark.parametrize("search", [beam_search, greedy_search, sample])
@pytest.mark.parametrize("pad, start, end", [(0, 0, 1), (0, 1, 1), (1, 2, 1), (1, 1, 1)])
def test_start_padding_and_end_may_be_one(search, pad, start, end):
    """As in T5, whose start is the padding, BART, whose start is the end, and GPT-2."""
    script = np.full((5, 6), 0.01)
    script[range(3), [3, 4, end]] = 0.95
    script[3:, 5] = 0.95
    model = with_ids(Scripted(script), pad_id=pad, start_id=start, end_id=end)
    options = {} if search is greedy_search else {"temperature": 1e-3, "seed": 0}
    options = {"nbest": 1} if search is beam_search else options
    ids, scores = search(model, np.array([[5, 5]]), max_length=5, **options)
    assert to_numpy(ids).reshape(-1).tolist() == [3, 4, end, pad, pad]
    expected = 3 * np.log(0.95 / script[0].sum())
    if search is beam_search:
        expected /= (8 / 6) ** 0.6
    assert_close(to_numpy(scores).reshape(-1), [expected], tolerance=1e-4)


@pytest.mark.parametrize("search", [greedy_search, sample])
def test_a_sentence_ends_where_nothing_may_follow(search):
    model = Scripted(np.ones((4, 6)))
    model.logits[0, END + 1] = 9
    model.logits[1:] = -np.inf
    model.logits[1:, [PAD, START]] = 0, 1
    ids, scores = search(model, np.array([[5, 5]]), max_length=4)
    assert to_numpy(ids)[0].tolist() == [END + 1, PAD, PAD, PAD]
    assert np.isneginf(to_numpy(scores))


@pytest.mark.parametrize("search", [beam_search, greedy_search, sample])
@pytest.mark.parametrize(
    "ids, change, message",
    [
        ({"end_id": 7}, None, r"ids below the number of logits, 7. .*\(0, 2, 7\)"),
        ({"pad_id": None}, None, "`model.config.pad_id` must be a whole number >= 0.*None"),
        ({}, lambda logits, cache: logits, "`model.step` must give back logits and the cache"),
        ({}, lambda logits, cache: (logits[:, 0], cache), "`logits` must have the shape"),
    ],
)
def test_what_a_model_must_not_do_is_told(rng, monkeypatch, search, ids, change, message):
    model = with_ids(Toy(rng), **ids)
    if change:
        monkeypatch.setattr(model, "step", lambda *a: change(*Toy.step(model, *a)))
    with pytest.raises(ValueError, match=message):
        search(model, padded(SOURCES), max_length=3)


@pytest.mark.parametrize("search", [beam_search, greedy_search, sample])
@pytest.mark.parametrize(
    "source_ids, message",
    [
        (np.array([4, 5, 3]), r"`source_ids` must have the shape \[any, any\].*\(3,\)"),
        ([[4, 5, 3], [4, 3]], "`source_ids` must be ids .* padded to one length"),
        (np.ones((1, 2), "float32"), "`source_ids` must hold integer ids.*float32"),
        (np.ones((1, 2), "bool"), "`source_ids` must hold integer ids.*bool"),
        (None, "`source_ids` must be ids .*None"),
        ([[4, -5, 3]], "`source_ids` must hold ids from 0 .*-5"),
        ([[4, 5 + 2**32, 3]], "`source_ids` must hold ids from 0 .*4294967301"),
    ],
)
def test_bad_sources_are_refused(rng, search, source_ids, message):
    with pytest.raises(ValueError, match=message):
        search(Toy(rng), source_ids)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size,count", [(5, 7), (64, 3), (65, 3), (900, 4), (900, 20), (130, 130)])
def test_the_largest_of_many_are_found_by_chunks(rng, size, count, mode):
    """Also among equal numbers, of which the first counts as the larger, and beside -inf."""
    few = rng.integers(0, 3 * size, (2, 3, size)).astype("float32")
    many = rng.integers(0, 3, (2, 3, size)).astype("float32")
    many[0, 1, : size // 2] = -np.inf
    for x in (few, many):
        run = compile_function(lambda t: top_k(t["x"], count), mode, {"x": x})
        largest, places = run({"x": x})
        expected = np.argsort(-x, axis=-1, kind="stable")[..., :count]
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(largest, np.take_along_axis(x, expected, axis=-1))


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch records what it computes")
@pytest.mark.parametrize("find", [beam_search, greedy_search, sample])
def test_nothing_is_recorded_for_gradients(find):
    model = Transformer(TransformerConfig.preset("tiny", vocabulary_size=11))
    _, scores = find(model, padded(SOURCES), max_length=3)
    assert not scores.requires_grad
