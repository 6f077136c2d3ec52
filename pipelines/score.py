"""Scores given translations: python -m pipelines.score --model RUN --source F --target F > scores

Teacher-forced: the model is told the target and asked how probable each next subword is.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from pipelines.command_line import run
from pipelines.corpora.text_files import check_file, read_lines
from pipelines.errors import InputError
from pipelines.flag_parser import checkpoint_flag, parse_flags
from pipelines.importing import load_keras
from pipelines.progress import progress
from pipelines.translators.base import CutSources

DESCRIPTION = """Tell how probable a trained model finds given translations. A line for each pair,
separated by tabs: its log-probability in nats, the log-probability per subword, and the number of
subwords, the end of the sentence included. The perplexity of all goes to standard error."""

_AT_A_TIME = 4096  # pairs, in batches by length


@dataclass(frozen=True)
class ScoreFlags:
    """What to score."""

    model: str
    """the directory of a training run"""
    source: str
    """text, plain or gzipped, a sentence a line"""
    target: str
    """its translation, line by line"""
    checkpoint: str | None = checkpoint_flag()


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(ScoreFlags, DESCRIPTION, "python -m pipelines.score", arguments)
    lines = _check_aligned(flags)

    load_keras()
    import numpy as np

    from pipelines.run.directory import RunDirectory
    from pipelines.translators.keras_model import Translator, load_run
    from pipelines.translators.likelihood import LikelihoodModel

    loaded = load_run(RunDirectory(flags.model), flags.checkpoint)
    likelihoods, cut_sources = LikelihoodModel(loaded), CutSources(Translator.of(loaded))
    pairs = zip(read_lines(flags.source), read_lines(flags.target), strict=True)
    subwords = 0
    total = 0.0
    # Whoever sees the scores come needs no other sign of life.
    is_shown = not sys.stdout.isatty()
    with progress("scoring", "pairs", lines, is_shown=is_shown) as work:
        while chunk := list(islice(pairs, _AT_A_TIME)):
            found = likelihoods(*zip(*chunk, strict=True))
            for log_prob, length in zip(found.log_probs, found.subwords, strict=True):
                print(f"{log_prob:.4f}\t{log_prob / length:.4f}\t{length}")
            sys.stdout.flush()
            cut_sources.tell([source for source, _ in chunk])
            work.advance(len(chunk))
            total += float(found.log_probs.sum())
            subwords += int(found.subwords.sum())
    cut_sources.tell_number()
    print(
        f"perplexity {np.exp(-total / subwords):.4g}: {work.done:,} pairs, {subwords:,} subwords  "
        f"(checkpoint:{loaded.checkpoint}|step:{loaded.step})",
        file=sys.stderr,
    )


def _check_aligned(flags: ScoreFlags) -> int:
    """How many pairs there are. A mistake in their last line is told before any work."""
    check_file("source", flags.source)
    check_file("target", flags.target)
    sources, targets = (sum(1 for _ in read_lines(path)) for path in (flags.source, flags.target))
    if sources != targets:
        raise InputError(
            "source and target must have as many lines as each other, but "
            f"{flags.source} has {sources} and {flags.target} has {targets}"
        )
    if not sources:
        raise InputError(f"source must have at least one line, but {flags.source} is empty")
    return sources


if __name__ == "__main__":
    run(main)
