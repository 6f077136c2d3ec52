"""Adam that updates a weight in one operation."""

from typing import Any

import keras
import tensorflow as tf


class FusedAdam(keras.optimizers.Adam):
    """Keras's Adam with its variables, by TensorFlow's kernel.

    Keras makes some forty operations for each weight: more to trace than a small model has forward
    and backward, and, for a large one, as many times through its memory. The kernel makes one.

    Args:
        learning_rate: a number or a schedule.
        beta_1, beta_2, epsilon: as Keras has them. Epsilon is that of the last remark of section 2
            of the paper, "epsilon hat".

    Reference: Kingma and Ba 2015.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name="adam")

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        step = tf.cast(self.iterations.value + 1, tf.float32)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=tf.pow(self.beta_1, step),
            beta2_power=tf.pow(self.beta_2, step),
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )
