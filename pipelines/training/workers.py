"""The processes that train one model together, a worker each, as `TF_CONFIG` lists them."""

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from pipelines.errors import InputError, first_line

_LOG = logging.getLogger(__name__)

# How TensorFlow reports that another process has gone.
_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)


@dataclass(frozen=True)
class Workers:
    """The workers of a strategy, seen from one of them.

    Attributes:
        strategy: what they train with.
        index: which one this is, from 0.
        count: how many there are.
    """

    strategy: tf.distribute.Strategy
    index: int = 0
    count: int = 1

    @classmethod
    def of(cls, strategy: tf.distribute.Strategy) -> "Workers":
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return cls(strategy)
        resolver = strategy.cluster_resolver
        cluster = resolver.cluster_spec().as_dict()
        chiefs = len(cluster.get("chief", []))
        is_chief = resolver.task_type == "chief"
        index = 0 if is_chief else chiefs + resolver.task_id
        return cls(strategy, index, chiefs + len(cluster.get("worker", [])))

    @property
    def is_chief(self) -> bool:
        """It alone writes."""
        return self.index == 0

    @property
    def replicas(self) -> range:
        """The replicas of this worker among all."""
        return replicas_of(self.index, self.count, self.strategy.num_replicas_in_sync)

    def any(self, value: bool) -> bool:
        """Whether the value is true on any worker; all must ask."""
        if self.count == 1:
            return value
        return bool(self._sum_of_one(tf.constant(value, tf.int32)) > 0)

    def from_chief(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The chief's values; all must ask, with values of the same shapes and types."""
        if self.count == 1:
            return list(values)
        own = [tf.constant(value if self.is_chief else np.zeros_like(value)) for value in values]
        return [total.numpy() for total in tf.function(self._sum, autograph=False)(own)]

    def wait_for_all(self) -> None:
        """Comes back when all have asked: who left before would be missed by the others.

        Raises:
            InputError: another worker has gone and has not asked.
        """
        with self.reporting_loss_of_others():
            self.any(False)
        # Whoever has this answer first could leave while the others still wait for it. So all tell
        # that they have it; who fails to hear that knows already that all have asked.
        with contextlib.suppress(InputError), self.reporting_loss_of_others():
            self.any(False)

    @contextlib.contextmanager
    def reporting_loss_of_others(self) -> Iterator[None]:
        """Says so when TensorFlow fails in the block because another worker has gone.

        Raises:
            InputError: one has.
        """
        try:
            yield
        except _LOST as error:
            if self.count == 1:
                raise
            raise InputError(
                "another worker has stopped or cannot be reached: start all of them again, and "
                f"they go on from the last checkpoint ({first_line(error)})"
            ) from error
        except RuntimeError as error:
            # Ctrl-C while TensorFlow makes its own error, of another worker that it has ended.
            if "KeyboardInterrupt" not in str(error):
                raise
            raise KeyboardInterrupt from error

    def check_same(self, values: Mapping[str, object]) -> None:
        """Compares values that must be equal on all workers, anything JSON holds; all must ask.

        Raises:
            InputError: a worker has another value than the chief.
        """
        for name, value in values.items():
            text = json.dumps(value, sort_keys=True).encode()
            mine = np.frombuffer(hashlib.sha256(text).digest(), np.uint8).astype(np.int32)
            differs = bool(np.any(self.from_chief([mine])[0] != mine))
            if self.any(differs):
                whose = "this one differs from the chief" if differs else "another one differs"
                raise InputError(f"{name} must be the same on all workers, but {whose}")

    @functools.cached_property
    def _sum_of_one(self) -> tf.types.experimental.PolymorphicFunction:
        return tf.function(lambda value: self._sum([value])[0], autograph=False)

    def _sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Over the workers: each puts its values into its first replica."""

        def contribution(*values):
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            is_first = tf.equal(replica, self.replicas[0])
            return [tf.where(is_first, value, tf.zeros_like(value)) for value in values]

        parts = self.strategy.run(contribution, args=values)
        return [self.strategy.reduce("SUM", part, axis=None) for part in parts]


def replicas_of(worker: int, workers: int, replicas: int) -> range:
    """Which of all replicas a worker has."""
    own = replicas // workers
    return range(worker * own, (worker + 1) * own)


def connect() -> tf.distribute.MultiWorkerMirroredStrategy:
    """Starts this worker and waits for the others, without a limit; Ctrl-C ends that.

    Raises:
        InputError: `TF_CONFIG` does not list the workers, or this worker's port is taken.
    """
    own, *others = check_tf_config(os.environ.get("TF_CONFIG", ""))
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # TensorFlow lets no other code of Python's run meanwhile, such as what hears of a signal.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if others:
        _LOG.info("%s waits for the other workers of TF_CONFIG: %s", own, ", ".join(others))
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except _LOST + (tf.errors.InvalidArgumentError, tf.errors.UnknownError) as error:
        raise InputError(f"cannot connect the workers of TF_CONFIG: {error.message}") from error
    finally:
        for number, handler in previous.items():  # or TensorFlow's own would swallow SIGTERM
            signal.signal(number, handler)


def check_tf_config(text: str) -> list[str]:
    """Checks that `TF_CONFIG` lists workers, and perhaps a chief before them, and one as the task.

    Returns:
        The addresses of all, that of the task first.

    Raises:
        InputError: it does not.
    """
    rule = (
        'strategy multi_worker needs TF_CONFIG={"cluster": {"worker": ["host:port", ...]}, '
        '"task": {"type": "worker", "index": 0}}'
    )
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        index = int(str(task["index"]))  # "1" is one as well, and 0.9 none
        own = cluster[task["type"]][index]
        addresses = [address for several in cluster.values() for address in several]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"{rule}, got {text or 'none'}") from error
    if not set(cluster) <= {"chief", "worker"} or len(cluster.get("chief", [])) > 1 or index < 0:
        raise InputError(f"{rule}, got {text}")
    for address in addresses:
        if not _is_address(address):
            raise InputError(f"{rule} with ports from 1 to 65535, got {json.dumps(address)}")
        if addresses.count(address) > 1:
            raise InputError(f"{rule} with different addresses, got {address} twice")
    return [own, *(address for address in addresses if address != own)]


def _is_address(address: object) -> bool:
    """Whether it is "host:port"."""
    found = re.fullmatch(r"[^\s/]+:(\d{1,5})", address) if isinstance(address, str) else None
    return found is not None and 0 < int(found[1]) < 1 << 16
