"""Translation with tf_relpos: prepare text, train, evaluate, translate and export."""

import os

from pipelines.importing import import_alone

# TensorFlow's own log lines; what goes wrong is raised as an exception as well.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# From here on `from tf_relpos.config import ...` takes no time: see `import_alone`.
import_alone("tf_relpos.config")
