"""Text to text with a file made by `pipelines.exporters.tflite`."""

import hashlib
import json
import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from pipelines.data.subword_model import loaded, read_bytes
from pipelines.errors import InputError, first_line
from pipelines.importing import import_optional, silence
from pipelines.translators.base import TextTranslator, Translation
from pipelines.translators.packed_model import unpack

METADATA_NAME, METADATA_FORMAT = "tf_relpos", 1

# What translating needs of the metadata.
_NEEDED = {
    **dict.fromkeys(("max_source_length", "max_target_length", "vocabulary_size"), int),
    **dict.fromkeys(("pad_id", "end_id"), int),
    **dict.fromkeys(("tokenizer", "tokenizer_sha256"), str),
}


class TFLiteTranslator(TextTranslator):
    """Translates sentences one by one with TFLite.

    Beam size, length penalty and lengths are those of the export; sources beyond its
    `max_source_length` subwords are cut there. There is one translation of each sentence.

    Args:
        path: the `.tflite` file, or the `.packed` one of a page; its tokenizer lies beside it.
        threads: of the processor. Products for one sentence are small: more are not always faster.

    Attributes:
        metadata: what the file says of itself, see `read_metadata`.

    Raises:
        InputError: the file or its tokenizer cannot be read, or ai-edge-litert is not installed.
    """

    def __init__(self, path: str | os.PathLike, *, threads: int = 1):
        self.path = path = Path(path)
        self._one_at_a_time = threading.Lock()
        content = _read(path)
        self.metadata = _metadata(path, content)
        self._subwords = _subwords(path.with_name(self.metadata["tokenizer"]), self.metadata)
        litert = import_optional("ai_edge_litert.interpreter", "ai-edge-litert")
        try:
            with silence():
                interpreter = litert.Interpreter(model_content=content, num_threads=threads)
                interpreter.allocate_tensors()
                self._search = interpreter.get_signature_runner("serving_default")
                shape = self._search.get_input_details()["source_ids"]["shape"].tolist()
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            raise InputError(f"{path} cannot be read: {first_line(error)}") from error
        if shape != [1, self.metadata["max_source_length"]]:
            raise InputError(
                f"{path} is damaged: its max_source_length must be that of its input, of shape "
                f"{shape}, got {self.metadata['max_source_length']}"
            )

    def _translate_chunk(self, sentences: Sequence[str]) -> Iterator[list[Translation]]:
        for sentence in sentences:
            ids, score = self.search([*self._subwords.encode(sentence), self.metadata["end_id"]])
            ids = [i for i in ids if i not in (self.metadata["pad_id"], self.metadata["end_id"])]
            if not all(0 <= i < self.metadata["vocabulary_size"] for i in ids):
                raise InputError(f"{self.path} finds subwords that its tokenizer does not have")
            yield [Translation(self._subwords.decode(ids), score)]

    def _source_lengths(self, sentences: Sequence[str]) -> tuple[Sequence[int], int]:
        rows = self._subwords.encode(list(sentences))
        return [len(row) + 1 for row in rows], self.metadata["max_source_length"]

    def search(self, source_ids: Sequence[int]) -> tuple[list[int], float]:
        """The best hypothesis for a source, both with the end id and padding behind it, if any.

        Returns:
            the ids `[L]`, and their log-probability over the length penalty, in nats.
        """
        row = np.full((1, self.metadata["max_source_length"]), self.metadata["pad_id"], np.int32)
        source_ids = source_ids[: row.shape[1]]
        row[0, : len(source_ids)] = source_ids
        try:
            with self._one_at_a_time:  # an interpreter has one place for its tensors
                found = self._search(source_ids=row)
                return found["target_ids"][0].tolist(), float(found["score"][0])
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            raise InputError(f"{self.path} cannot be run: {first_line(error)}") from error


def read_metadata(path: str | os.PathLike) -> dict[str, Any]:
    """What a file of `export_tflite` says of itself.

    Returns:
        `format`, `max_source_length`, `max_target_length`, `beam_size`, `alpha`, `quantization`,
        `source_language`, `target_language`, `vocabulary_size`, `pad_id`, `unknown_id`, `start_id`,
        `end_id`, `tokenizer` (its file's name) and `tokenizer_sha256`.

    Raises:
        InputError: the file cannot be read, or is not such a file.
    """
    return _metadata(Path(path), _read(Path(path)))


def _read(path: Path) -> bytes:
    try:
        return unpack(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the model {path}: {error.strerror}") from error
    except (KeyError, *_DAMAGE) as error:
        raise InputError(f"{path} is damaged") from error


def _metadata(path: Path, content: bytes) -> dict[str, Any]:
    schema = import_optional("ai_edge_litert.schema_py_generated", "ai-edge-litert")
    if content[4:8] != b"TFL3":
        raise InputError(f"{path} is not a TFLite file")
    try:
        entries = _entries(schema.Model.GetRootAs(content))
        metadata = json.loads(entries[METADATA_NAME])
        if not isinstance(metadata, dict):
            raise TypeError
    except KeyError:
        raise InputError(
            f"{path} has no {METADATA_NAME} metadata: export it with pipelines.export"
        ) from None
    except _DAMAGE as error:
        raise InputError(f"{path} is damaged") from error
    if metadata.get("format") != METADATA_FORMAT:
        raise InputError(
            f"{path} must have format {METADATA_FORMAT}, got {metadata.get('format')}: export it "
            "again"
        )
    for name, kind in _NEEDED.items():
        if type(metadata.get(name)) is not kind:
            raise InputError(
                f"{path} is damaged: its metadata must have a {name} of type {kind.__name__}"
            )
    for name in ("pad_id", "end_id"):
        if not 0 <= metadata[name] < metadata["vocabulary_size"]:
            raise InputError(
                f"{path} is damaged: its {name} must be a subword, got {metadata[name]}"
            )
    tokenizer = metadata["tokenizer"]
    if Path(tokenizer).name != tokenizer or tokenizer in ("", "..") or "\0" in tokenizer:
        raise InputError(f"{path} is damaged: its tokenizer must be a file beside it")
    return metadata


# What reading of metadata that are none, or of a file that is cut, ends with.
_DAMAGE = (
    *(AttributeError, IndexError, TypeError, ValueError),
    *(MemoryError, RecursionError, struct.error),
)


def _entries(model: Any) -> dict[str, bytes]:
    """The metadata of a model, an object of LiteRT's schema, by name."""
    entries = (model.Metadata(i) for i in range(model.MetadataLength()))
    return {
        entry.Name().decode(): model.Buffers(entry.Buffer()).DataAsNumpy().tobytes()
        for entry in entries
    }


def _subwords(path: Path, metadata: Mapping[str, Any]) -> sentencepiece.SentencePieceProcessor:
    content = read_bytes(path)
    if hashlib.sha256(content).hexdigest() != metadata["tokenizer_sha256"]:
        raise InputError(f"{path} is not the tokenizer that the model was exported with")
    subwords = loaded(path, content)
    if subwords.get_piece_size() != metadata["vocabulary_size"]:
        raise InputError(
            f"the tokenizer {path} must have the {metadata['vocabulary_size']} subwords of the "
            f"model, got {subwords.get_piece_size()}"
        )
    return subwords
