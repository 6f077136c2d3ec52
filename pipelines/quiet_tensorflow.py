"""Importing this module imports TensorFlow without a word.

TensorFlow writes lines of its own to standard error when it is loaded and when it looks for GPUs,
whatever its log level, which would bury a one-line error message. Command lines import this before
anything that needs TensorFlow or Keras.
"""

import os


def _import_tensorflow() -> None:
    standard_error = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        import tensorflow

        tensorflow.config.list_physical_devices()
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)
        os.close(nowhere)


_import_tensorflow()
