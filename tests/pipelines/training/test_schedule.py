"""The learning rate of a run."""

import dataclasses

import keras
import pytest

from pipelines.config import default_config
from pipelines.training.schedule import Cooldown, last_rate, schedule_of
from tf_relpos import WarmupInverseSqrt


def rates(schedule, steps):
    return [float(schedule(step)) for step in steps]


@pytest.fixture
def config():
    """Three warm-up steps of ten."""
    config = default_config("base", demo=False)
    return dataclasses.replace(
        config, training=dataclasses.replace(config.training, steps=10, warmup_steps=3)
    )


def test_without_a_cooldown_it_is_that_of_the_paper(config):
    found = rates(schedule_of(config), range(10))
    assert found == rates(WarmupInverseSqrt(512, 3), range(10))


def test_the_last_steps_cool_down_to_nothing(config):
    training = dataclasses.replace(config.training, cooldown=0.4)
    found = rates(schedule_of(dataclasses.replace(config, training=training)), range(11))
    expected = rates(WarmupInverseSqrt(512, 3), range(11))
    factors = [1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]
    assert found == pytest.approx([x * y for x, y in zip(expected, factors, strict=True)])


def test_the_last_rate_is_that_of_the_last_update_that_was_made(config):
    """Of ten steps, of which four were skipped."""
    schedule = schedule_of(config)
    optimizer = keras.optimizers.Adam()
    optimizer.iterations.assign(6)
    assert last_rate(schedule, optimizer) == rates(schedule, [5])[0]


def test_it_is_made_again_from_its_configuration():
    schedule = Cooldown(64, 5, 2.0, steps=20, share=0.3)
    again = Cooldown.from_config(schedule.get_config())
    assert rates(again, range(20)) == rates(schedule, range(20))
