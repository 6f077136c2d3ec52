"""SentencePiece models: read, checked, and brought to the ids that arrays and models agree on.

Stock `spm_train` gives 0 unknown, 1 start, 2 end, and no padding; others have other ids. The
special pieces of such a model are put in front, those that are missing are added, and the other
pieces keep their order. Nothing here needs TensorFlow.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sentencepiece

from pipelines.data.dataset import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from pipelines.errors import InputError

_IDS = {"pad": PAD_ID, "unk": UNKNOWN_ID, "bos": START_ID, "eos": END_ID}
_NAMES = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>"}


def read_model(path: Path) -> sentencepiece.SentencePieceProcessor:
    """A model with our ids.

    Raises:
        InputError: there is no such file, it is no SentencePiece model, or it has other ids.
    """
    model = loaded(path, read_bytes(path))
    ids = tuple(_special_ids(model).values())
    if ids != tuple(_IDS.values()):
        raise InputError(
            f"the tokenizer {path} must have ids 0 pad, 1 unknown, 2 start, 3 end, got "
            f"{', '.join(map(str, ids))}"
        )
    return model


def vocabulary_size_of(path: Path) -> int:
    """How many pieces a model has once it is adapted.

    Raises:
        InputError: see `adapted_model`.
    """
    return loaded(path, adapted_model(path)).get_piece_size()


def adapted_model(path: Path, vocabulary_size: int | None = None) -> bytes:
    """A model from elsewhere, with our ids; one that has them already comes back as it is.

    Args:
        path: of the model.
        vocabulary_size: the pieces that it must have in the end, if that matters.

    Raises:
        InputError: there is no such file, it is no SentencePiece model, or of another size.
    """
    serialized = read_bytes(path)
    found = _special_ids(loaded(path, serialized))
    if found != _IDS:
        serialized = _with_ids(path, serialized, found)
    pieces = loaded(path, serialized).get_piece_size()
    if vocabulary_size not in (None, pieces):
        raise InputError(
            f"vocabulary_size must be that of the tokenizer {path}, {pieces}, got {vocabulary_size}"
        )
    return serialized


def check_can_sample(path: Path) -> None:
    """Checks that a model is a unigram model, which knows how probable other segmentations are.

    Raises:
        InputError: it is not, there is no such file, or it is no SentencePiece model.
    """
    spec = _parsed(path, read_bytes(path)).trainer_spec
    if spec.model_type != spec.UNIGRAM:
        raise InputError(f"subword_sampling needs a unigram model, but {path} is of another type")


def _with_ids(path: Path, serialized: bytes, found: Mapping[str, int]) -> bytes:
    """The model with its special pieces in front."""
    proto = _parsed(path, serialized)
    special = [_special_piece(proto, name, found[name]) for name in _IDS]
    taken = set(found.values())
    others = [piece for number, piece in enumerate(proto.pieces) if number not in taken]
    pieces = [type(piece).FromString(piece.SerializeToString()) for piece in (*special, *others)]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    spec = proto.trainer_spec
    for name, number in _IDS.items():
        setattr(spec, f"{name}_id", number)
        setattr(spec, f"{name}_piece", pieces[number].piece)
    spec.vocab_size = len(pieces)
    return proto.SerializeToString()


def read_bytes(path: Path) -> bytes:
    """What is in the file of a model.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the tokenizer {path}: {error.strerror}") from error


def loaded(path: Path, serialized: bytes) -> sentencepiece.SentencePieceProcessor:
    """The model whose file has this content.

    Raises:
        InputError: it is no SentencePiece model.
    """
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=serialized or b"\0")
    except RuntimeError as error:
        raise InputError(f"the tokenizer {path} is not a SentencePiece model") from error


def _special_ids(model: sentencepiece.SentencePieceProcessor) -> dict[str, int]:
    """Padding, unknown, start, end; -1 for what is missing."""
    return {name: getattr(model, f"{name}_id")() for name in _IDS}


def _parsed(path: Path, serialized: bytes) -> Any:
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    try:
        return sentencepiece_model_pb2.ModelProto.FromString(serialized)
    except DecodeError as error:
        raise InputError(f"the tokenizer {path} is not a SentencePiece model") from error


def _special_piece(proto: Any, name: str, number: int) -> Any:
    """The piece with that number; a new one if there is none."""
    if number >= 0:
        return proto.pieces[number]
    names = {piece.piece for piece in proto.pieces}
    free = next(text for text in _candidates(_NAMES[name]) if text not in names)
    return type(proto.pieces[0])(piece=free, score=0.0, type=type(proto.pieces[0]).CONTROL)


def _candidates(name: str) -> Iterator[str]:
    """The name, then others that look like it."""
    while True:
        yield name
        name = f"<{name}>"
