"""The learning rate: of a run, and of the small models that `model.fit` trains."""

from typing import Any

import keras
from keras import ops

from pipelines.config import RunConfig
from tf_relpos import WarmupInverseSqrt

WARMUP = 0.05  # of a small model's updates, over which its rate rises


def warmup_then_cosine(
    updates: int, highest: float
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Rises in a line, and falls along a cosine to nothing at the last update."""
    warmup = max(round(WARMUP * updates), 1)
    return keras.optimizers.schedules.CosineDecay(
        0.0, max(updates - warmup, 1), warmup_target=highest, warmup_steps=warmup
    )


def last_rate(
    schedule: keras.optimizers.schedules.LearningRateSchedule,
    optimizer: keras.optimizers.Optimizer,
) -> float:
    """That of the last update that was made, which those skipped do not count as."""
    updates = ops.convert_to_numpy(optimizer.iterations)  # one for all replicas
    return float(schedule(int(updates) - 1))


def schedule_of(config: RunConfig) -> WarmupInverseSqrt:
    """That of Vaswani et al. 2017, with a cooldown in the end where one is asked for."""
    training = config.training
    arguments = (config.model.model_dim, training.warmup_steps, training.learning_rate_scale)
    if not training.cooldown:
        return WarmupInverseSqrt(*arguments)
    return Cooldown(*arguments, steps=training.steps, share=training.cooldown)


class Cooldown(WarmupInverseSqrt):
    """Its last steps are times a factor that falls linearly to 0.

    The noise that a high rate leaves in the weights goes.

    Args:
        model_dim, warmup_steps, scale: see `WarmupInverseSqrt`.
        steps: how many there are; the rate would be 0 at the next.
        share: of them, the last ones, above 0.

    Reference: Hägele et al. 2024, section 3.
    """

    def __init__(
        self,
        model_dim: float,
        warmup_steps: float = 4000,
        scale: float = 1.0,
        *,
        steps: int,
        share: float,
    ):
        super().__init__(model_dim, warmup_steps, scale)
        self.steps = steps
        self.share = share

    def __call__(self, step: Any) -> Any:
        left = self.steps - ops.cast(step, "float32")
        return super().__call__(step) * ops.minimum(1.0, left / (self.share * self.steps))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "steps": self.steps, "share": self.share}
