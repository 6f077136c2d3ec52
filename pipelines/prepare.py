"""Makes subwords and arrays of a corpus: python -m pipelines.prepare --output DIR"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.command_line import run
from pipelines.config import CorpusConfig, default_config
from pipelines.errors import InputError
from pipelines.flag_parser import Parser
from pipelines.importing import load_keras

DESCRIPTION = """Learn a shared subword vocabulary from parallel text and tokenize it into arrays on
disk, sorted into length buckets. `train_wmt --prepared DIR` trains on the result, as often as you
like."""


@dataclass(frozen=True)
class PrepareFlags:
    """What to make."""

    output: str
    """the directory to write"""
    vocabulary_size: int | None = None
    """subwords shared by both languages; 32,768 unless given, for the demo corpus 900, and those
    of --tokenizer if that is given"""
    tokens_per_replica: int = 4096
    """batch size of the report that is printed"""

    def __post_init__(self) -> None:
        if self.tokens_per_replica < 1:
            raise InputError(
                f"tokens_per_replica must be at least 1, got {self.tokens_per_replica}"
            )


def _vocabulary_size(flags: argparse.Namespace) -> int:
    """V, as given, or that of the tokenizer, or the default."""
    if flags.prepare.vocabulary_size is not None:
        return flags.prepare.vocabulary_size
    if flags.corpus.tokenizer is None:
        return default_config("tiny", demo=flags.corpus.is_demo).model.vocabulary_size
    from pipelines.data.subword_model import vocabulary_size_of  # NumPy, which is slow

    return vocabulary_size_of(Path(flags.corpus.tokenizer))


def main(arguments: Sequence[str]) -> None:
    parser = Parser(DESCRIPTION, prog="python -m pipelines.prepare")
    parser.add_section(PrepareFlags, "prepare")
    parser.add_section(CorpusConfig, "corpus")
    flags = parser.parse(arguments)
    corpus = flags.corpus.corpus()
    vocabulary_size = _vocabulary_size(flags)

    load_keras()
    from pipelines.data.buckets import BATCHES_PER_BUCKET, batch_sizes, bucket_report
    from pipelines.data.preparation import prepare

    prepared = prepare(
        corpus,
        flags.prepare.output,
        vocabulary_size=vocabulary_size,
        max_length=flags.corpus.max_length,
        num_shapes=flags.corpus.num_shapes,
        tokenizer=flags.corpus.tokenizer,
        subword_model=flags.corpus.subword_model or "unigram",
    )
    tokens = flags.prepare.tokens_per_replica
    train = prepared.train.with_buckets_of(BATCHES_PER_BUCKET * tokens)
    sizes = batch_sizes(train.buckets, tokens, 1)
    print(bucket_report(train.buckets, sizes, train.metadata["dropped"]))


if __name__ == "__main__":
    run(main)
