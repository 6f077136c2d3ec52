"""The training step: the loss of all tokens, whatever replicas and micro-batches they are cut into.

Virtual devices exist only where TensorFlow has not started, so that part runs in a new process.
"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipelines import train_wmt
from pipelines.data.dataset import TokenizedCorpus
from pipelines.data.subword_sampling import with_room
from pipelines.training import loop
from pipelines.training.adam import Adam
from pipelines.training.token_loss import divergence
from pipelines.training.trainer import TranslationTrainer
from tests.support.layer_checks import assert_close, run_python
from tests.support.runs import history, train_flags, write_corpus
from tf_relpos import Transformer, TransformerConfig, greedy_search, smoothed_cross_entropy

pytestmark = pytest.mark.tensorflow_only

V = 17
CONFIG = TransformerConfig(
    vocabulary_size=V,
    model_dim=10,
    inner_dim=13,
    num_heads=2,
    encoder_layers=1,
    decoder_layers=1,
    max_relative_position=2,
    implementation="transpose_reshape",  # the smallest graph: the trainer is tested here
    dropout=0.0,
)
DROPOUT = TransformerConfig(**{**vars(CONFIG), "dropout": 0.3, "attention_dropout": 0.2})


def batch(rng, size=3, source_length=5, target_length=7):
    source_ids = rng.integers(4, V, (size, source_length), dtype="int32")
    labels = rng.integers(4, V, (size, target_length), dtype="int32")
    source_ids[0, 3:], labels[0, 2:] = 0, 0  # rows with other numbers of tokens
    shifted = np.concatenate([np.full((size, 1), 2, "int32"), labels[:, :-1]], axis=1)
    return {"source_ids": source_ids, "target_ids": shifted, "labels": labels}


def train(
    config,
    batches,
    *,
    optimizer=None,
    dtype="float32",
    start=0,
    change=lambda model: None,
    **arguments,
):
    """Trains on the batches in order, from weights that `change` has changed; returns the trainer
    and the logs of each update."""
    keras.utils.set_random_seed(11)
    transformer = Transformer(config, dtype=dtype)
    transformer.build()
    if change:
        change(transformer)
    trainer = TranslationTrainer(transformer, **{"seed": 5, **arguments})
    trainer.compile(optimizer=optimizer or keras.optimizers.SGD(0.5), jit_compile=False)
    trainer.optimizer.build(transformer.trainable_variables)
    trainer.optimizer.iterations.assign(start)
    signature = {name: tf.TensorSpec([None, None], tf.int32) for name in batches[0]}
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    records = []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            records.append({name: float(value) for name, value in logs.items()})

    steps = len(batches) // trainer.micro_batches
    trainer.fit(dataset, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[Keep()])
    return trainer, records


def losses(logs):
    return [step["loss"] for step in logs]


def weights(trainer):
    return np.concatenate([w.ravel() for w in trainer.transformer.get_weights()])


def test_the_update_is_the_gradient_of_the_mean_over_all_target_tokens(rng):
    """Two micro-batches of other shapes and numbers of tokens; SGD with rate 1 shows the sum."""
    batches = [batch(rng), batch(rng, size=2, source_length=4, target_length=3)]
    before, _ = train(CONFIG, batches[:1], optimizer=keras.optimizers.SGD(0.0))
    start = weights(before)
    model, variables = before.transformer, before.transformer.trainable_variables
    with tf.GradientTape() as tape:
        sums = [tf.reduce_sum(smoothed_cross_entropy(b["labels"], model(b), 0.1)) for b in batches]
        tokens = sum(np.count_nonzero(b["labels"]) for b in batches)
        loss = tf.add_n(sums) / tokens
    gradients = tape.gradient(loss, [v.value for v in variables])
    expected = np.concatenate([tf.convert_to_tensor(g).numpy().ravel() for g in gradients])

    optimizer = keras.optimizers.SGD(1.0)
    trainer, logs = train(CONFIG, batches, optimizer=optimizer, micro_batches=2)
    assert len(logs) == 1
    assert logs[0]["tokens"] == tokens
    assert_close(logs[0]["loss"] / tokens, loss.numpy())
    assert_close(start - weights(trainer), expected, tolerance=1e-4)


def test_logs_are_sums_over_the_batch(rng):
    example = batch(rng)
    trainer, (logs,) = train(CONFIG, [example], optimizer=keras.optimizers.SGD(0.0))
    logits = trainer.transformer(example)
    is_token = example["labels"] != 0
    hits = (np.argmax(logits.numpy(), axis=-1) == example["labels"]) & is_token
    for name, smoothing in (("loss", 0.1), ("nll", 0.0)):
        expected = smoothed_cross_entropy(example["labels"], logits, smoothing).numpy().sum()
        assert_close(logs[name], expected)
    assert logs["correct"] == hits.sum()
    assert logs["tokens"] == is_token.sum() == 2 + 7 + 7
    assert logs["source_tokens"] == 3 + 5 + 5
    assert logs["positions"] == 3 * (5 + 7)
    assert logs["non_finite"] == 0
    sums = {"loss", "nll", "correct", "tokens", "source_tokens", "positions"}
    assert set(logs) == sums | {"non_finite"}


def test_micro_batches_train_like_one_batch_of_the_same_pairs(rng):
    wholes = [batch(rng, size=6) for _ in range(20)]
    halves = [{n: ids[i : i + 3] for n, ids in whole.items()} for whole in wholes for i in (0, 3)]
    arguments = {"optimizer": Adam(0.003)}
    one, one_logs = train(CONFIG, wholes, **arguments)
    arguments = {"optimizer": Adam(0.003)}
    two, two_logs = train(CONFIG, halves, micro_batches=2, **arguments)
    assert len(one_logs) == len(two_logs) == 20
    assert_close(losses(two_logs), losses(one_logs), tolerance=1e-4)
    assert_close(weights(two), weights(one), tolerance=1e-4)
    assert int(two.optimizer.iterations) == 20


def test_xla_trains_alike(rng):
    batches = [batch(rng) for _ in range(3)]
    config = TransformerConfig(**{**vars(CONFIG), "implementation": "auto"})
    plain, plain_logs = train(config, batches, longest=7)
    for part in ("passes", "model"):
        compiled, compiled_logs = train(config, batches, longest=7, xla=part)
        assert_close(losses(compiled_logs), losses(plain_logs))
        assert_close(weights(compiled), weights(plain), tolerance=1e-4)


def test_told_the_longest_length_it_attends_in_one_way_and_trains_alike(rng, monkeypatch):
    batches = [batch(rng), batch(rng, size=2, source_length=4, target_length=3)]
    config = TransformerConfig(**{**vars(CONFIG), "implementation": "bucketed"})
    branches, cond = [], keras.ops.cond
    monkeypatch.setattr(keras.ops, "cond", lambda *a: branches.append(a) or cond(*a))
    expected, logs = train(config, batches)
    assert branches
    branches.clear()
    trainer, records = train(config, batches, longest=7)
    assert not branches
    assert_close(losses(records), losses(logs))
    assert_close(weights(trainer), weights(expected))


def test_a_run_tells_its_trainer_the_longest_length_that_its_batches_have(
    corpus, tmp_path, monkeypatch
):
    trainers = []

    class Kept(TranslationTrainer):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            trainers.append(self)

    monkeypatch.setattr(loop, "TranslationTrainer", Kept)
    train_wmt.main(
        train_flags(corpus, tmp_path, splits=("train",), steps=1, subword_sampling=0.3, jit="off")
    )
    buckets = TokenizedCorpus.open(tmp_path / "prepared" / "train").buckets
    lengths = [max(b.source_length, b.target_length) for b in with_room(buckets)]
    assert trainers[0].longest == max(lengths) > max(b.source_length for b in buckets)


@pytest.mark.slow  # so does a run that is resumed, and test_replicas on any number of them
@pytest.mark.parametrize("xla", ["passes", "model", "nothing"])
def test_dropout_is_a_function_of_seed_and_step(rng, xla):
    """With a learning rate of 0 nothing but the masks tells one step from another."""
    same = [batch(rng)] * 5
    of_attention = DROPOUT.attention_dropout if xla != "passes" else 0.0  # which is no such pass
    config = dataclasses.replace(DROPOUT, attention_dropout=of_attention)

    def run(count=5, **arguments):
        _, logs = train(
            config, same[:count], optimizer=keras.optimizers.SGD(0.0), xla=xla, **arguments
        )
        return losses(logs)

    whole = run()
    assert len(set(whole)) == 5
    np.testing.assert_allclose(run(3, start=2), whole[2:], rtol=1e-6)
    assert abs(run(1, seed=6)[0] - whole[0]) > 1e-4 * whole[0]


def test_micro_batches_draw_masks_of_their_own(rng):
    same = [batch(rng)] * 4
    still = keras.optimizers.SGD
    _, one = train(DROPOUT, same[:1], optimizer=still(0.0))
    _, two = train(DROPOUT, same, optimizer=still(0.0), micro_batches=2)
    first, second = losses(two)
    assert abs(first - 2 * losses(one)[0]) > 1e-4 * first
    assert first != second


def test_no_two_masks_of_a_step_are_the_same(rng, monkeypatch):
    """Not even where one layer is called for all that it is deep: 8 times 3 sub-layers."""
    next_seed, drawn = keras.random.SeedGenerator.next, []

    def watched(generator, ordered=True):
        drawn.append(next_seed(generator, ordered))
        return drawn[-1]

    monkeypatch.setattr(keras.random.SeedGenerator, "next", watched)
    config = {**vars(DROPOUT), "share_layers": True, "encoder_layers": 2, "decoder_layers": 8}
    tf.config.run_functions_eagerly(True)
    try:
        train(TransformerConfig(**config), [batch(rng)])
    finally:
        tf.config.run_functions_eagerly(False)
    seeds = {tuple(np.asarray(seed).tolist()) for seed in drawn}
    assert len(seeds) == len(drawn) >= 2 + 2 * 3 + 8 * 5


def test_a_batch_of_padding_alone_changes_nothing(rng):
    empty = {name: np.zeros_like(ids) for name, ids in batch(rng).items()}
    trainer, logs = train(CONFIG, [empty])
    still, _ = train(CONFIG, [empty], optimizer=keras.optimizers.SGD(0.0))
    assert losses(logs) == [0.0]
    np.testing.assert_array_equal(weights(trainer), weights(still))


def test_float16_scales_the_loss(rng):
    """Gradients would vanish in float16; the update must still be that of float32."""
    batches = [batch(rng) for _ in range(2)]
    half, half_logs = train(CONFIG, batches, dtype="mixed_float16")
    whole, whole_logs = train(CONFIG, batches)
    assert isinstance(half.optimizer, keras.optimizers.LossScaleOptimizer)
    assert_close(losses(half_logs), losses(whole_logs), tolerance=0.01)
    assert_close(weights(half), weights(whole), tolerance=0.01)


def test_it_learns_to_copy(rng):
    """Sequences it has not seen, by greedy search. How many depends on the processor's rounding
    (0.86 to 1); by chance none would be right."""

    def copies(count):
        ids = rng.integers(4, V, (count, 6), dtype="int32")
        ids[:, -1] = 3
        shifted = np.concatenate([np.full((count, 1), 2, "int32"), ids[:, :-1]], axis=1)
        return {"source_ids": ids, "target_ids": shifted, "labels": ids}

    config = TransformerConfig(**{**vars(CONFIG), "model_dim": 32, "inner_dim": 64})
    batches = [copies(64) for _ in range(300)]
    optimizer = Adam(0.005)
    trainer, logs = train(config, batches, optimizer=optimizer, label_smoothing=0.0)
    assert losses(logs)[-1] < 0.2 * losses(logs)[0]
    unseen = copies(50)["source_ids"]
    found, _ = greedy_search(trainer.transformer, unseen, max_length=6)
    assert np.mean(np.all(found.numpy() == unseen, axis=1)) > 0.6


def test_r_drop_without_dropout_trains_like_one_pass(rng):
    """Both passes are the same then, whose divergence is 0; tokens are counted once."""
    batches = [batch(rng) for _ in range(3)]
    one, expected = train(CONFIG, batches)
    for xla in ("nothing", "passes", "model"):
        two, found = train(CONFIG, batches, r_drop=5.0, xla=xla)
        for a, b in zip(expected, found, strict=True):
            assert a == pytest.approx(b, rel=1e-5)
        assert_close(weights(two), weights(one), tolerance=1e-5)


@pytest.mark.slow
def test_r_drop_keeps_passes_alike(rng):
    """With dropout, passes differ, the more so the less it weighs."""
    batches = [batch(rng)] * 60
    both = {
        alpha: train(DROPOUT, batches, optimizer=Adam(0.01), r_drop=alpha) for alpha in (0.1, 9.0)
    }
    between = {}
    for alpha, (trainer, logs) in both.items():
        assert losses(logs)[-1] < losses(logs)[0]
        first, second = (trainer.transformer(batches[0], training=True) for _ in range(2))
        between[alpha] = float(tf.reduce_mean(divergence(first, second)))
    assert 0 < between[9.0] < 0.7 * between[0.1]


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_replicas_train_like_one(times, tmp_path):
    """The same global batches, dropout off: equal losses and weights after 20 steps, of so many
    micro-batches each."""
    corpus = write_corpus(tmp_path, train=400)
    common = {
        "splits": ["train"],
        "virtual_cpus": 2,
        "steps": 20,
        "warmup_steps": 20,
        "log_every": 1,
        "dropout": 0.0,
        "epsilon": 1e-4,  # or Adam makes a step of the rounding where there is no gradient
        "tokens_per_step": 512,
    }
    settings = {
        "one": {"tokens_per_replica": 512 // times, "strategy": "one"},
        "two": {"tokens_per_replica": 256 // times, "strategy": "mirrored"},
    }
    if times > 1:
        settings["other batches"] = {"tokens_per_replica": 512, "strategy": "one"}
    runs = {
        name: [str(a) for a in train_flags(corpus, tmp_path / name, **common, **values)]
        for name, values in settings.items()
    }
    output = run_python(
        f"""
import json, keras, numpy as np
from pipelines import train_wmt
from pipelines.command_line import show_log
from pipelines.run.directory import RunDirectory
from pipelines.run.models import build_model
show_log()
results = {{}}
for name, arguments in {runs!r}.items():
    train_wmt.main(arguments)
    run = RunDirectory(arguments[arguments.index("--run_dir") + 1])
    model = build_model(run.config().model)
    assert run.checkpoints.load(model) == 20
    results[name] = np.concatenate([w.ravel() for w in model.get_weights()])
np.savez(r"{tmp_path / "weights.npz"}", **results)
"""
    )
    assert output.count("step 20/20") == len(settings)
    found = np.load(tmp_path / "weights.npz")
    one, two = ([record["loss"] for record in history(tmp_path / name)] for name in ("one", "two"))
    assert len(one) == len(two) == 20
    assert_close(two, one, tolerance=1e-4)
    assert_close(found["two"], found["one"], tolerance=1e-4)
    assert one[-1] < 0.8 * one[0]
    if times > 1:
        assert np.max(np.abs(found["one"] - found["other batches"])) > 1e-3


def gradient_norm(trainer_before, example):
    """Of the mean loss over target tokens, all weights together."""
    model, variables = trainer_before.transformer, trainer_before.transformer.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(smoothed_cross_entropy(example["labels"], model(example), 0.1))
        loss /= np.count_nonzero(example["labels"])
    gradients = tape.gradient(loss, [v.value for v in variables])
    return float(tf.linalg.global_norm([tf.convert_to_tensor(g) for g in gradients]))


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_float16", marks=pytest.mark.slow)]
)
def test_gradients_are_clipped_to_a_global_norm(rng, dtype):
    example = batch(rng)
    before, _ = train(CONFIG, [example], optimizer=keras.optimizers.SGD(0.0))
    start, norm = weights(before), gradient_norm(before, example)
    for clip_norm, expected in ((norm / 3, norm / 3), (2 * norm, norm)):
        optimizer = keras.optimizers.SGD(1.0)
        trainer, _ = train(CONFIG, [example], optimizer=optimizer, clip_norm=clip_norm, dtype=dtype)
        found = np.linalg.norm(start - weights(trainer))
        assert found == pytest.approx(expected, rel=1e-4 if dtype == "float32" else 0.01)


def spoil(transformer):
    """Sentences of three tokens and more meet a relative position that is not finite."""
    for block in transformer.encoder_blocks:
        table = block.self_attention.relative_key_embeddings
        table.assign(tf.tensor_scatter_nd_update(table.value, [[0, 0]], [np.inf]))


SPOILT = TransformerConfig(**{**vars(CONFIG), "heads_share_relative_embedding": True})


def test_an_update_that_is_not_finite_is_skipped_if_asked(rng):
    good = [batch(rng, source_length=2) for _ in range(2)]
    for example in good:
        example["source_ids"][example["source_ids"] == 0] = 4
    bad = batch(rng, source_length=3)
    skipping, logs = train(
        SPOILT,
        [good[0], bad, good[1]],
        optimizer=Adam(0.01),
        skip_non_finite=True,
        change=spoil,
    )
    expected, _ = train(SPOILT, good, optimizer=Adam(0.01), change=spoil)
    assert [step["non_finite"] for step in logs] == [0.0, 1.0, 0.0]
    np.testing.assert_array_equal(weights(skipping), weights(expected))
    assert int(skipping.optimizer.iterations) == 2

    stopping, logs = train(SPOILT, [good[0], bad], optimizer=Adam(0.01), change=spoil)
    assert [step["non_finite"] for step in logs] == [0.0, 1.0]
    assert np.count_nonzero(~np.isfinite(weights(stopping))) > 1
