"""What a run tells of its updates and validations: its history, and events for TensorBoard."""

from collections.abc import Callable, Mapping

import tensorflow as tf

from pipelines.errors import InputError, reason_of
from pipelines.run.directory import TrainingRun

Recorder = Callable[[Mapping[str, float]], None]


def recorder_of(run: TrainingRun) -> Recorder:
    """What appends a record, scalars by name and their "step", to `history.jsonl` and to the events
    of a run. One for all that it tells: TensorBoard reads one file of events at a time.

    The recorder raises InputError if either cannot be written.
    """
    writer = tf.summary.create_file_writer(str(run.events_path))

    def record(scalars: Mapping[str, float]) -> None:
        run.add_history(dict(scalars))
        write_events(writer, scalars)

    return record


def write_events(writer: tf.summary.SummaryWriter, record: Mapping[str, float]) -> None:
    """Writes the scalars of a record for TensorBoard.

    Raises:
        InputError: they cannot be written.
    """
    try:
        with writer.as_default(step=int(record["step"])):
            for name, value in record.items():
                if name != "step":
                    tf.summary.scalar(name, value)
        writer.flush()
    except tf.errors.OpError as error:
        raise InputError(f"cannot write events for TensorBoard: {reason_of(error)}") from error
