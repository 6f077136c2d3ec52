"""From a corpus of text to what training reads: a tokenizer, arrays, and held-out text.

<directory>/
  tokenizer.model               SentencePiece
  train/                        the tokenized corpus, see `pipelines.data.dataset`; appears last
  valid.source valid.target     held-out text as it is, so that scores are of raw text
  test.source test.target
  text.json                     `pipelines.files.fingerprints` of the files that it was made from
  lock                          of the process that writes, meanwhile
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from pipelines.config import CorpusConfig, TrainingConfig
from pipelines.corpora.corpus import Corpus
from pipelines.data.buckets import BATCHES_PER_BUCKET
from pipelines.data.dataset import TokenizedCorpus
from pipelines.data.dataset_writer import TokenizedCorpusWriter
from pipelines.data.subword_model import adapted_model
from pipelines.data.tokenization import tokenize
from pipelines.data.tokenizer import Tokenizer, train_tokenizer
from pipelines.errors import InputError
from pipelines.files.atomic import new_directory, new_file
from pipelines.files.checksums import CHECKSUMS, sha256
from pipelines.files.fingerprints import are_unchanged, write_fingerprints
from pipelines.files.locks import exclusive
from pipelines.progress import Work, progress

_LOG = logging.getLogger(__name__)

_HELD_OUT = ("valid", "test")
_TOKENIZER, _TEXT = "tokenizer.model", "text.json"

_MIN_TOKENS_PER_BUCKET = BATCHES_PER_BUCKET * TrainingConfig.tokens_per_replica


@dataclass(frozen=True)
class Prepared:
    """A completed preparation.

    Attributes:
        directory: where it lies.
        train: the tokenized training pairs.
    """

    directory: Path
    train: TokenizedCorpus

    @property
    def tokenizer_path(self) -> Path:
        return self.directory / _TOKENIZER

    @property
    def checksums_path(self) -> Path:
        """The checksums of the arrays, which tell one tokenized corpus from another."""
        return self.train.directory / CHECKSUMS

    @property
    def settings(self) -> dict[str, Any]:
        """What it was made from: corpus, languages, sizes."""
        return self.train.metadata["settings"]

    @property
    def splits(self) -> tuple[str, ...]:
        """The held-out splits, `"valid"` and `"test"` or fewer."""
        return tuple(self.train.metadata["held_out"])

    def text(self, split: str) -> tuple[list[str], list[str]]:
        """The source and the target sentences of a held-out split."""
        if split not in self.splits:
            raise InputError(
                f"split must be one of {', '.join(self.splits) or '(none)'}, got {split!r}"
            )
        source, target = _text_paths(self.directory, split)
        return _lines(source), _lines(target)


def prepare(
    corpus: Corpus,
    directory: str | Path,
    *,
    vocabulary_size: int,
    max_length: int = CorpusConfig.max_length,
    num_shapes: int = CorpusConfig.num_shapes,
    tokenizer: str | Path | None = None,
    subword_model: str = "unigram",
) -> Prepared:
    """Makes the tokenizer and the arrays of a corpus, or opens those that are there already.

    Memory does not grow with the corpus. Interrupted work starts again from the beginning. Nothing
    appears before everything is made.

    Args:
        corpus: the text.
        directory: where to write; files that are there are left alone.
        vocabulary_size: V.
        max_length: pairs with more ids on a side are dropped, the end id included.
        num_shapes: the most length buckets.
        tokenizer: an existing SentencePiece model to use instead of learning one; it has
            `vocabulary_size` pieces once it is adapted, see `pipelines.data.subword_model`.
        subword_model: how to learn one, see `pipelines.data.tokenizer.train_tokenizer`.

    Raises:
        InputError: the directory holds a preparation with other settings, of other text or a
            damaged one, holds other files by the names that are written, is being written by
            another process or cannot be written to; the corpus cannot be read, or nothing is left
            of it.
    """
    directory = Path(directory)
    model = None if tokenizer is None else adapted_model(Path(tokenizer), vocabulary_size)
    settings = {
        "corpus": corpus.name,
        "text_bytes": corpus.text_bytes,
        "source_language": corpus.source_language,
        "target_language": corpus.target_language,
        "vocabulary_size": vocabulary_size,
        "max_length": max_length,
        "num_shapes": num_shapes,
        "tokenizer": None if model is None else hashlib.sha256(model).hexdigest(),
        "subword_model": subword_model,
    }
    if not (directory / "train").exists():
        if "train" not in corpus.splits:
            raise InputError(f"the corpus {corpus.name} has no training pairs")
        with exclusive(directory):
            if not (directory / "train").exists():  # another process may have just made it
                _complete(corpus, directory, settings, model)
    prepared = open_prepared(directory)
    splits = _held_out(corpus)
    if list(prepared.splits) != splits:
        found, wanted = (", ".join(("train", *names)) for names in (prepared.splits, splits))
        raise InputError(
            f"{directory} was prepared with text for {found}, got {wanted}: choose another "
            "directory or the same text"
        )
    if corpus.files and (directory / _TEXT).exists():
        del settings["text_bytes"]  # the files' checksums tell more
    _check_same(directory, prepared.settings, settings)
    if not are_unchanged(directory / _TEXT, corpus.files):
        raise InputError(
            f"the text of {corpus.name} ({', '.join(('train', *splits))}) is not what {directory} "
            "was prepared from: choose another directory or the same text"
        )
    return prepared


@progress("checking the prepared text")
def open_prepared(directory: str | Path) -> Prepared:
    """Opens what `prepare` made.

    Raises:
        InputError: it is missing, incomplete, damaged, or files of it have been exchanged.
    """
    directory = Path(directory)
    prepared = Prepared(directory, TokenizedCorpus.open(directory / "train"))
    prepared.train.verify()
    made_with = prepared.train.metadata.get("made_with", {})
    for name, digest in _sums(prepared.tokenizer_path, prepared.splits).items():
        if made_with.get(name) != digest:
            raise InputError(
                f"{directory / name} is not what {prepared.train.directory} was made with"
            )
    return prepared


def _complete(
    corpus: Corpus, directory: Path, settings: dict[str, Any], model: bytes | None
) -> None:
    """Makes everything out of sight, then moves it to its place, `train` last.

    Whoever was killed while moving has left the rest to be moved.
    """
    made = directory / ".prepared"
    if not made.exists():
        held_out = (_text_paths(directory, split) for split in _held_out(corpus))
        written = (directory / _TOKENIZER, directory / _TEXT, *chain.from_iterable(held_out))
        _check_nothing_is_replaced(written)
        with new_directory(made) as temporary:
            _make(corpus, temporary, settings, model)
    moves = {path: directory / path.name for path in made.iterdir()}
    _check_nothing_is_replaced(moves.values())
    for path in sorted(moves, key=lambda path: path.name == "train"):
        path.rename(moves[path])
    made.rmdir()


def _check_nothing_is_replaced(paths: Iterable[Path]) -> None:
    for path in paths:
        if os.path.lexists(path):
            raise InputError(
                f"{path} exists already, and is no part of a complete preparation: choose another "
                "directory, or move it away"
            )


def _make(corpus: Corpus, directory: Path, settings: dict[str, Any], model: bytes | None) -> None:
    """Writes everything."""
    vocabulary_size = settings["vocabulary_size"]
    write_fingerprints(directory / _TEXT, corpus.files)
    # Held-out text comes first: a fault in it shows before minutes of learning.
    held_out = _held_out(corpus)
    for split in held_out:
        _write_text(directory, split, corpus.pairs(split))
    tokenizer_path = directory / _TOKENIZER
    pairs = None
    if model is None:
        _LOG.info(f"learning {vocabulary_size:,} subwords from {corpus.name}")
        with progress("reading text", "sentences") as work:
            sentences = _then_learn(chain.from_iterable(corpus.pairs("train")), work)
            train_tokenizer(
                sentences,
                vocabulary_size,
                tokenizer_path,
                subword_model=settings["subword_model"],
            )
        pairs = work.done // 2
    else:
        tokenizer_path.write_bytes(model)

    metadata = {
        "settings": settings,
        "held_out": held_out,
        "made_with": _sums(tokenizer_path, held_out),
    }
    with TokenizedCorpusWriter(
        directory / "train",
        vocabulary_size=vocabulary_size,
        max_length=settings["max_length"],
        num_shapes=settings["num_shapes"],
        min_tokens=_MIN_TOKENS_PER_BUCKET,
        metadata=metadata,
    ) as writer:
        tokenize(corpus.pairs("train"), Tokenizer(tokenizer_path), writer, pairs)


def _then_learn(sentences: Iterable[str], work: Work) -> Iterator[str]:
    """The sentences, counted; after the last, SentencePiece learns and does not tell how far."""
    yield from work.counted(sentences)
    work.what, work.unit = "learning subwords", ""


def _held_out(corpus: Corpus) -> list[str]:
    return [split for split in _HELD_OUT if split in corpus.splits]


def _write_text(directory: Path, split: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Writes a held-out split, a sentence a line."""
    pairs = list(pairs)
    for side, path in enumerate(_text_paths(directory, split)):
        lines = (pair[side].replace("\n", " ") + "\n" for pair in pairs)
        with new_file(path) as temporary, temporary.open("wb") as file:
            file.writelines(line.encode() for line in lines)


def _text_paths(directory: Path, split: str) -> tuple[Path, Path]:
    return directory / f"{split}.source", directory / f"{split}.target"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode().split("\n")[:-1]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _sums(tokenizer: Path, held_out: Iterable[str]) -> dict[str, str]:
    """Checksums by file name of what lies beside the arrays."""
    text = chain.from_iterable(_text_paths(tokenizer.parent, split) for split in held_out)
    return {path.name: sha256(path) for path in (tokenizer, *text)}


def _check_same(directory: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = {"subword_model": "unigram", **found}  # as before there were others
    for name, value in wanted.items():
        if found.get(name) != value:
            raise InputError(
                f"{directory} was prepared with {name} {found.get(name)!r}, got {value!r}: "
                "choose another directory or the same settings"
            )
