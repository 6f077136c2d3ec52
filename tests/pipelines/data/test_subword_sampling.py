"""Subwords drawn anew: the same text, with the probabilities of Kudo 2018, within the shapes."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from pipelines.data.buckets import batch_sizes
from pipelines.data.epoch_plan import EpochPlan
from pipelines.data.input import training_dataset
from pipelines.data.preparation import open_prepared
from pipelines.data.subword_model import read_model
from pipelines.data.subword_sampling import SubwordSampler, with_room
from pipelines.data.tokenizer import train_tokenizer

ALPHA = 0.3


SYLLABLES = ("wa", "ter", "wat", "er", "fal", "land", "an", "der")


def compounds(count, seed):
    """Sentences of words that are made of syllables, with many ways to cut them."""
    rng = random.Random(seed)
    for _ in range(count):
        words = ("".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(6))
        yield " ".join(words) + "."


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("subwords") / "tokenizer.model"
    train_tokenizer(compounds(400, seed=1), 320, path)
    return path


@pytest.fixture(scope="module")
def sampler(path):
    return SubwordSampler(path, ALPHA, seed=3)


def rows(model, texts, length):
    ids = [[*model.encode(text), 3] for text in texts]
    return np.array([row + [0] * (length - len(row)) for row in ids], np.int32)


def test_each_segmentation_comes_as_often_as_its_probability_says(path, sampler):
    model, draws = read_model(path), 20_000
    ids = rows(model, ["water"] * draws, 9)
    numbers = np.repeat(((np.arange(draws) + 0.5) / draws)[:, None], 9, axis=1)
    found = Counter(tuple(row[row > 3].tolist()) for row in sampler(ids, numbers, 9))
    assert len(found) > 5
    # All ways to cut the word, by trying every place.
    letters = "▁water"
    weights = {}
    for cuts in range(1 << (len(letters) - 1)):
        ends = [i + 1 for i in range(len(letters)) if cuts >> i & 1] + [len(letters)]
        pieces = [letters[a:b] for a, b in zip([0, *ends], ends, strict=False) if a < b]
        numbers_of = tuple(model.piece_to_id(piece) for piece in pieces)
        if 1 not in numbers_of:
            weights[numbers_of] = math.exp(ALPHA * sum(map(model.get_score, numbers_of)))
    assert set(found) <= set(weights)
    for segmentation, weight in weights.items():
        expected = weight / sum(weights.values())
        assert found[segmentation] / draws == pytest.approx(expected, abs=2 / draws)


@pytest.mark.parametrize("room", [0, 2, 40])
def test_the_text_stays_and_fits(path, sampler, rng, room):
    model = read_model(path)
    texts = [*compounds(30, seed=2), "日本 emoji 😀 in bytes", ""]
    width = max(len(model.encode(text)) for text in texts) + 1
    ids = rows(model, texts, width)
    sampled = sampler(ids, rng.random(ids.shape), width + room)
    assert sampled.shape == (len(texts), width + room) and sampled.dtype == np.int32
    for text, row, before in zip(texts, sampled, ids, strict=True):
        kept = row[row != 0].tolist()
        assert kept[-1] == 3 and 3 not in kept[:-1]
        assert model.decode(kept) == model.decode(before[before != 0].tolist()), text
    if room == 40:
        assert (sampled[:, :width] != ids).any(axis=1).sum() > 15


def test_where_room_is_short_every_word_is_cut_as_often(path, rng):
    """Of twelve words that are the same, with room for a few of those that are drawn."""
    sampler = SubwordSampler(path, 0.05, seed=3)
    model, draws = read_model(path), 4_000
    ids = rows(model, [" ".join(["water"] * 12)] * draws, 12 * len(model.encode("water")) + 1)
    whole = model.encode("water")
    sampled = sampler(ids, rng.random(ids.shape), ids.shape[1] + 4)
    changed = np.zeros(12)
    begins = np.array([model.id_to_piece(number).startswith("▁") for number in range(320)])
    for row in sampled:
        starts = np.flatnonzero(begins[row] & (row > 3))
        assert len(starts) == 12
        ends = [*starts[1:], np.flatnonzero(row == 3)[0]]
        changed += [row[a:b].tolist() != whole for a, b in zip(starts, ends, strict=True)]
    assert 0.2 < changed.mean() / draws < 0.6
    assert np.abs(changed / changed.mean() - 1).max() < 0.15


def test_batches_are_those_of_the_step_for_any_replicas(trained_run):
    prepared = open_prepared(trained_run / "prepared")
    corpus, sampler = prepared.train, SubwordSampler(prepared.tokenizer_path, ALPHA, seed=1)
    buckets = with_room(corpus.buckets)
    plan = EpochPlan(corpus.pairs_per_bucket, batch_sizes(buckets, 256, 2), seed=1)

    def batches(**values):
        dataset = training_dataset(corpus, plan, sampler=sampler, **values)
        return [element["labels"] for element in dataset.as_numpy_iterator()]

    whole = batches(first_step=0, num_steps=4)
    parts = batches(first_step=2, num_steps=2, num_replicas=2)
    for number in range(2):
        both = np.concatenate(parts[2 * number : 2 * number + 2])
        np.testing.assert_array_equal(both, whole[2 + number])
    assert whole[0].shape[1] == buckets[plan.batch(0)[0]].target_length
    epoch = round(plan.batches_per_epoch)
    stored = [corpus.gather(*plan.batch(step))[1] for step in range(epoch)]
    drawn = batches(first_step=0, num_steps=epoch)
    assert sum(map(np.count_nonzero, drawn)) > sum(map(np.count_nonzero, stored))
