"""Translation with tf_relpos: prepare text, train, evaluate, translate and export."""

import os

# TensorFlow's own log lines; what goes wrong is raised as an exception as well.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
