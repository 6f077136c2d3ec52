"""Greedy, beam and sampling search against exhaustive and loop-by-loop search on a toy model."""

import numpy as np
import pytest

from tests.support.layer_checks import (
    COMPILED_MODES,
    MODES,
    assert_close,
    compile_function,
    to_numpy,
)
from tests.support.search_toys import END, PAD, START, Scripted, Toy, beam, exhaustive, trimmed
from tf_relpos import beam_search, greedy_search, sample

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
@pytest.mark.parametrize("beam_size", [1, 2, 4, 11])
def test_stopping_early_never_changes_the_result(rng, beam_size, alpha, end_bonus):
    """The plain search goes on to the limit whatever it has found."""
    toy = Toy(rng, vocabulary_size=13, end_bonus=end_bonus)
    expected = [beam(toy, source, beam_size, 11, alpha) for source in SOURCES]
    found = beam_search(toy, padded(SOURCES), beam_size=beam_size, alpha=alpha, max_length=11)
    check_hypotheses(*found, expected)


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


@pytest.mark.tensorflow_only
def test_stops_when_nothing_can_win_any_more(rng):
    """Over 70 tokens are allowed; a model that likes to end needs few steps."""
    toy = Toy(rng, end_bonus=6.0)
    beam_search(toy, padded(SOURCES, 23), beam_size=2)
    assert 1 <= toy.steps <= 15


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
    for options in ({"top_k": 1}, {"temperature": 1e-4}):
        np.testing.assert_array_equal(
            to_numpy(sample(toy, padded(SOURCES), **options)[0]), expected
        )


def test_sampling_from_the_top_two_takes_no_other(rng):
    toy = Toy(rng)
    sources = np.tile(padded(SOURCES[:1]), (97, 1))
    ids = to_numpy(sample(toy, sources, top_k=2, max_length=3, seed=1)[0])
    best = set(np.argsort(toy.log_probs(SOURCES[0], ()))[-2:])
    assert set(ids[:, 0]) == best


def test_a_seed_gives_the_same_samples_again(rng):
    toy = Toy(rng, vocabulary_size=13)
    sources = np.tile(padded(SOURCES), (5, 1))
    one, same, other = (to_numpy(sample(toy, sources, seed=seed)[0]) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.any(one != other)


BAD_ARGUMENTS = [
    (beam_search, {"beam_size": 0}, "beam_size.*0"),
    (beam_search, {"beam_size": 2.5}, "beam_size.*2.5"),
    (beam_search, {"max_length": 0}, "max_length.*0"),
    (greedy_search, {"max_length": 0}, "max_length.*0"),
    (sample, {"temperature": 0.0}, "temperature.*0"),
    (sample, {"top_k": 0}, "top_k.*0"),
]


@pytest.mark.parametrize("search,bad,message", BAD_ARGUMENTS)
def test_bad_arguments_are_refused(rng, search, bad, message):
    with pytest.raises(ValueError, match=message):
        search(Toy(rng), padded(SOURCES), **bad)
