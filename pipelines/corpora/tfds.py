"""The WMT translation data sets of TensorFlow Datasets."""

import functools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipelines.errors import InputError
from pipelines.progress import on_terminal, progress

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

NAMES = ("wmt14_translate/de-en", "wmt14_translate/fr-en", "wmt_t2t_translate/de-en")
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


class TfdsCorpus:
    """A WMT data set, in either direction.

    It is downloaded and prepared, if it is not there yet, when the first pairs are asked for.

    In all three, TFDS's "validation" is newstest2013 and its "test" is newstest2014: see `_subsets`
    of TFDS's `WmtT2tTranslate` and `Wmt14Translate` (the latter lists newsdev2014 as well, which
    exists for Hindi only). They differ in the training data: `wmt_t2t_translate` is the
    set that tensor2tensor trained on.

    Args:
        name: one of `NAMES`.
        source_language, target_language: the two languages of the name, in either order.
        data_dir: where prepared data sets lie; TFDS's default, `~/tensorflow_datasets`, if None.

    Raises:
        InputError: if name or languages are none of these. While iterating: if the data cannot be
            downloaded and prepared.
    """

    splits = tuple(_SPLITS)
    text_bytes = None
    files: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        source_language: str,
        target_language: str,
        data_dir: str | os.PathLike[str] | None = None,
    ):
        if name not in NAMES:
            raise InputError(f"dataset must be one of {', '.join(NAMES)}, got {name!r}")
        languages = name.rpartition("/")[2].split("-")
        if {source_language, target_language} != set(languages):
            raise InputError(
                f"source_language and target_language must be {' and '.join(languages)} in either "
                f"order for {name}, got {source_language!r} and {target_language!r}"
            )
        self.name = name
        self.source_language = source_language
        self.target_language = target_language
        self._data_dir = data_dir

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the pairs of "train", "valid" or "test" in the order in which they are stored."""
        if split not in _SPLITS:
            raise InputError(f"split must be one of {', '.join(self.splits)}, got {split!r}")
        return self._pairs(_SPLITS[split])

    @functools.cached_property
    def _builder(self) -> "tfds.core.DatasetBuilder":
        return _prepared_builder(self.name, self._data_dir)

    def _pairs(self, tfds_split: str) -> Iterator[tuple[str, str]]:
        examples = self._builder.as_dataset(split=tfds_split, shuffle_files=False)
        # Batches only because crossing from TensorFlow to Python costs more than a sentence.
        for batch in examples.batch(1024).as_numpy_iterator():
            sources, targets = batch[self.source_language], batch[self.target_language]
            for source, target in zip(sources, targets, strict=True):
                yield source.decode("utf-8"), target.decode("utf-8")


def _prepared_builder(
    name: str, data_dir: str | os.PathLike[str] | None
) -> "tfds.core.DatasetBuilder":
    # Importing this package takes seconds, and only this class needs it.
    import tensorflow_datasets as tfds

    if not on_terminal():  # where its own lines, which redraw, would be thousands
        tfds.disable_progress_bar()
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        with progress(f"downloading and preparing {name}"):
            builder.download_and_prepare()
    # Network, disk, checksum and parser errors share no base class, and mean the same to the user.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise InputError(f"dataset {name} cannot be downloaded and prepared: {reason}") from error
    return builder
