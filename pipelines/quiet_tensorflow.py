"""Importing this module imports TensorFlow without a word.

TensorFlow writes lines of its own when it is loaded and when it looks for GPUs, whatever its log
level. Command lines import this before anything that needs TensorFlow or Keras.
"""

from pipelines.quiet import silence

with silence():
    import tensorflow

    tensorflow.config.list_physical_devices()
