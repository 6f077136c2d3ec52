"""What every corpus is: sentence pairs in up to three splits. Nothing else about it matters."""

from collections.abc import Iterator
from typing import Protocol


class Corpus(Protocol):
    """Sentence pairs in up to three splits.

    Attributes:
        name: "demo", the name of a TFDS data set, or one derived from the first training file.
        source_language, target_language: codes such as "en" and "de".
        splits: those of "train", "valid" and "test" that exist, in this order.
        files: those that it reads, in their order; empty for what is named without doubt.
        text_bytes: size of the files that it reads, so that other text under the same name is
            noticed; None for what is named without doubt.
    """

    name: str
    source_language: str
    target_language: str
    splits: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def text_bytes(self) -> int | None: ...

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream the (source, target) pairs of a split from its beginning, as often as called.

        Empty sentences are kept, so that counts and line numbers stay those of the input.

        Raises:
            InputError: for a split that does not exist, and, while iterating, for bad input.
        """
        ...
