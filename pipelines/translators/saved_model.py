"""Text to text with a SavedModel in this process."""

import os
from collections.abc import Mapping

import tensorflow as tf
import tensorflow_text  # noqa: F401  the graph holds its operations

from pipelines.errors import InputError, first_line, reason_of
from pipelines.importing import silence
from pipelines.progress import progress
from pipelines.translators.side_by_side import batches_at_once
from pipelines.translators.signatures import SignatureTranslator


def open_saved_model(
    path: str | os.PathLike,
    *,
    nbest: int = 1,
    beam_size: int | None = None,
    alpha: float | None = None,
) -> SignatureTranslator:
    """A translator that calls the signatures of a SavedModel.

    Args:
        path: the directory of a version, with `saved_model.pb` in it.
        nbest, beam_size, alpha: see `SignatureTranslator`.

    Raises:
        InputError: it cannot be loaded, or a number is out of range.
    """
    return SignatureTranslator(LoadedModel(path), nbest=nbest, beam_size=beam_size, alpha=alpha)


class LoadedModel:
    """A `Predictor`: a SavedModel that is loaded into this process.

    Args:
        path: the directory of a version.

    Raises:
        InputError: it cannot be loaded.
    """

    def __init__(self, path: str | os.PathLike):
        self.name = str(path)
        self.at_once = batches_at_once()
        try:
            # Kept, because the signatures do not keep alive what they use. Silent, because
            # TensorFlow warns that what serves has no gradients.
            with progress("loading the SavedModel"), silence():
                self._model = tf.saved_model.load(str(path))
        except (OSError, ValueError, LookupError, TypeError, tf.errors.OpError) as error:
            raise InputError(f"{path} cannot be read: {first_line(error)}") from error

    def predict(self, signature: str, inputs: Mapping[str, object]) -> Mapping[str, object]:
        """The outputs of a signature by name, as nested lists.

        Raises:
            InputError: there is no such signature, or it refuses the inputs.
        """
        if signature not in self._model.signatures:
            raise InputError(
                f"model {self.name} must have the signature {signature}, but has "
                f"{', '.join(sorted(self._model.signatures)) or 'none'}"
            )
        function = self._model.signatures[signature]
        dtypes = {name: spec.dtype for name, spec in function.structured_input_signature[1].items()}
        if dtypes.keys() != inputs.keys():
            raise InputError(
                f"model {self.name} must be a translator, whose signature {signature} takes "
                f"{', '.join(inputs)}, but it takes {', '.join(dtypes)}"
            )
        try:
            tensors = {name: tf.constant(inputs[name], dtypes[name]) for name in inputs}
        except (TypeError, ValueError) as error:
            raise InputError(
                f"model {self.name} must be a translator: {first_line(error)}"
            ) from error
        try:
            outputs = function(**tensors)
        except tf.errors.InvalidArgumentError as error:
            raise InputError(f"model {self.name} refuses: {reason_of(error)}") from error
        return {name: _as_lists(tensor) for name, tensor in outputs.items()}


def _as_lists(tensor: tf.Tensor) -> object:
    if tensor.dtype != tf.string:
        return tensor.numpy().tolist()
    texts = tf.strings.unicode_transcode(tensor, "UTF-8", "UTF-8").numpy()  # U+FFFD for the rest
    return _decoded(texts.tolist())


def _decoded(texts: list | bytes) -> object:
    return [_decoded(text) for text in texts] if isinstance(texts, list) else texts.decode()
