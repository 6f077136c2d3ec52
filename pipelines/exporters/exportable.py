"""What every exporter takes: a trained translator, and what its files say of it."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipelines.data.tokenizer import Tokenizer
from pipelines.errors import InputError
from pipelines.run.directory import RunDirectory
from pipelines.translators.keras_model import Translator


@dataclass(frozen=True)
class Exportable:
    """A translator and what lies beside its weights.

    Attributes:
        translator: the model in float32, its tokenizer, and the settings of its search.
        tokenizer_path: the SentencePiece model that its tokenizer was read from.
        source_language, target_language: their codes, such as "en"; None if they are unknown.
        run: the `id` of the run that it is from, if any.
    """

    translator: Translator
    tokenizer_path: str | Path
    source_language: str | None = None
    target_language: str | None = None
    run: str | None = None

    @classmethod
    def from_run(cls, translator: Translator, run: RunDirectory) -> "Exportable":
        """A translator with what `pipelines.translators.keras_model.load_run` has loaded."""
        corpus = run.config().corpus
        languages = corpus.source_language, corpus.target_language
        return cls(translator, run.tokenizer_path, *languages, run.id())

    def check_is_not_quantized(self) -> None:
        """Raises InputError if layers hold integers and their scales in place of weights."""
        for layer in self.translator.model._flatten_layers():
            if layer.quantization_mode is not None:
                raise InputError(
                    f"the model must not be quantized by Keras, but its {layer.path} is in "
                    f"{layer.quantization_mode}: export it as it was before"
                )

    def source(self) -> dict[str, Any]:
        """What tells one export from another: the run, the weights, and how it searches."""
        digest = hashlib.sha256()
        for weight in self.translator.model.get_weights():
            digest.update(weight.tobytes())
        return {
            "run": self.run,
            "weights": digest.hexdigest(),
            "beam_size": self.translator.beam_size,
            "alpha": self.translator.alpha,
            "max_source_length": self.translator.max_source_length,
        }

    def tokenizer(self) -> bytes:
        """The SentencePiece model.

        Raises:
            InputError: it cannot be read, or does not belong to the model.
        """
        found = Tokenizer(self.tokenizer_path).vocabulary_size
        wanted = self.translator.model.config.vocabulary_size
        if found != wanted:
            raise InputError(
                f"tokenizer {self.tokenizer_path} must have the {wanted} subwords of the model, "
                f"got {found}"
            )
        return Path(self.tokenizer_path).read_bytes()


class Exporter(Protocol):
    """Writes an `Exportable` in one form, complete or not at all.

    Args:
        exportable: what to write.
        output: where.
        options: those of `pipelines.exporters.registry` that the form takes.

    Returns:
        What is new.

    Raises:
        InputError: the form cannot hold the model, an option is out of range, or the output exists
            or cannot be written.
    """

    def __call__(
        self, exportable: Exportable, output: str | os.PathLike, **options: object
    ) -> Path: ...
