"""Scores a trained model: python -m pipelines.evaluate --run_dir DIR --source F --reference F"""

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simple_parsing import choice

from pipelines.command_line import lasting_output, run
from pipelines.corpora.text_files import read_lines
from pipelines.errors import InputError
from pipelines.files.atomic import write_text
from pipelines.flag_parser import checkpoint_flag, parse_flags
from pipelines.importing import load_keras
from pipelines.translators.base import CutSources, check_search
from pipelines.translators.side_by_side import share_cores
from tf_relpos.config import ALPHA, BEAM_SIZE

if TYPE_CHECKING:
    from pipelines.run.metrics import Score
    from pipelines.run.significance import Difference
    from pipelines.translators.keras_model import LoadedRun

DESCRIPTION = """Translate a text with a trained model and score it with sacreBLEU: BLEU, chrF and
TER. The scores are printed with their signatures and appended to scores.json in the run
directory."""

# Of sacreBLEU. Those named flores download a SentencePiece model when they are first used.
TOKENIZERS = ("13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "flores101", "flores200")


@dataclass(frozen=True)
class EvaluateFlags:
    """What to score."""

    run_dir: list[str]
    """the directory of a training run; several translate together, as an ensemble, whose scores
    are printed and not recorded"""
    source: str
    """text to translate, plain or gzipped, a sentence a line"""
    reference: list[str]
    """its reference translation, line by line; several files are as many references"""
    checkpoint: str | None = checkpoint_flag()
    beam_size: int = BEAM_SIZE
    """hypotheses kept; 1 is greedy search"""
    alpha: float = ALPHA
    """length penalty"""
    tokenize: str | None = choice(*TOKENIZERS, default=None)
    """sacreBLEU's tokenizer for BLEU; that of the target language unless given"""
    lowercase: bool = False
    """ignore case in BLEU and chrF as well; TER always does"""
    by_length: int = 0
    """also the scores of short and of long sentences: in so many ranges of the words of the source;
    0: of all sentences alone"""
    comet: str | None = None
    """also COMET, by the program comet-score, with this model: its name, such as
    Unbabel/wmt22-comet-da, or a .ckpt file"""
    output: str | None = None
    """a new file for the translations"""
    compare_with: str | None = None
    """test whether the scores differ from those of another run directory, or of a file of
    translations: paired bootstrap"""

    def __post_init__(self) -> None:
        check_search(beam_size=self.beam_size, alpha=self.alpha)
        if self.by_length < 0:
            raise InputError(f"by_length must be 0 or more, got {self.by_length}")
        if self.comet and len(self.reference) > 1:
            raise InputError(f"comet takes one reference, got {len(self.reference)}")
        if self.compare_with and not os.path.exists(self.compare_with):
            raise InputError(f"compare_with must be a run directory or a file: {self.compare_with}")
        if self.output:
            _check_new_file("output", Path(self.output))


def _check_new_file(argument: str, path: Path) -> None:
    if path.exists():
        raise InputError(f"{argument} must not exist yet, got {path}")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise InputError(f"{argument} must be in a directory that can be written, got {path}")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(EvaluateFlags, DESCRIPTION, "python -m pipelines.evaluate", arguments)
    sources = list(read_lines(flags.source))
    references = [_lines_like(sources, path, flags.source) for path in flags.reference]
    baseline = None
    if flags.compare_with and not os.path.isdir(flags.compare_with):
        baseline = _lines_like(sources, flags.compare_with, flags.source)

    share_cores()
    load_keras()
    from pipelines.run.comet import Comet
    from pipelines.run.directory import RunDirectory
    from pipelines.run.metrics import compute, sacrebleu_metrics
    from pipelines.run.scoring import score_record, scores_by_length
    from pipelines.run.significance import paired_bootstrap
    from pipelines.translators.ensemble import combined
    from pipelines.translators.keras_model import Translator, load_run

    runs = [RunDirectory(path) for path in flags.run_dir]
    config = runs[0].config()
    metrics = sacrebleu_metrics(
        config.corpus.target_language, tokenize=flags.tokenize, lowercase=flags.lowercase
    )
    comet = Comet(flags.comet) if flags.comet else None
    search = {"beam_size": flags.beam_size, "alpha": flags.alpha}
    loaded = combined([load_run(run, flags.checkpoint) for run in runs])
    translator = Translator.of(loaded, **search)
    if flags.compare_with and baseline is None:
        other = load_run(RunDirectory(flags.compare_with), flags.checkpoint)
        baseline = Translator.of(other, **search).translate(sources)
    translations = translator.translate(sources)
    cut_sources = CutSources(translator)
    cut_sources.tell(sources)
    cut_sources.tell_number()
    scores = compute(metrics, translations, references)
    where = {"split": flags.source, "checkpoint": loaded.checkpoint, "step": loaded.step}
    record = score_record(config, scores, **where, **search) | {"reference": flags.reference}
    # What took minutes is shown even if the directory cannot be written, and kept even if the
    # reader of the output has gone, or what comes next fails. Of several runs nothing is kept.
    with lasting_output() if len(runs) == 1 else contextlib.nullcontext():
        try:
            for score in scores.values():
                _show(score, loaded, len(runs))
            if flags.output:
                _write_lines(Path(flags.output), translations)
            if flags.by_length:
                lengths = sources, translations, references
                record["by_length"] = scores_by_length(metrics, *lengths, flags.by_length)
                _show_lengths(record["by_length"], scores)
            if baseline:
                differences = paired_bootstrap(metrics, baseline, translations, references)
                record["compared_with"] = _show_differences(differences, flags)
            if comet:
                score = comet(sources, translations, references[0])
                _show(score, loaded, len(runs))
                record |= {"comet": score.score, "comet_signature": score.signature}
        finally:
            if len(runs) == 1:
                runs[0].add_score(record)


def _show(score: "Score", loaded: "LoadedRun", runs: int) -> None:
    signature = f"{score.signature}|checkpoint:{loaded.checkpoint}|step:{loaded.step}"
    if runs > 1:
        signature += f"|ensemble:{runs}"
    digits = 4 if score.name == "COMET" else 2
    print(f"{score.name} {score.score:.{digits}f}  ({signature})", flush=True)


def _show_lengths(ranges: list[dict[str, Any]], scores: "Mapping[str, Score]") -> None:
    for found in ranges:
        sentences = "sentence" if found["sentences"] == 1 else "sentences"
        values = ", ".join(f"{score.name} {found[name]:.2f}" for name, score in scores.items())
        print(
            f"{found['shortest']} to {found['longest']} words, "
            f"{found['sentences']:,} {sentences}: {values}",
            flush=True,
        )


def _show_differences(
    differences: "Mapping[str, Difference]", flags: EvaluateFlags
) -> dict[str, Any]:
    """Prints them; returns them as they are recorded."""
    for found in differences.values():
        print(
            f"{found.name} {found.difference:+.2f} on {found.baseline:.2f} of "
            f"{flags.compare_with}, p = {found.p_value:.3f}  ({found.signature})",
            flush=True,
        )
    records = {name: dataclasses.asdict(found) for name, found in differences.items()}
    return {"translations": flags.compare_with, **records}


def _write_lines(path: Path, texts: Sequence[str]) -> None:
    """A line for each text."""
    write_text(path, "".join(text + "\n" for text in texts))


def _lines_like(sources: list[str], path: str, source: str) -> list[str]:
    """The lines of a file that must have as many as the source."""
    lines = list(read_lines(path))
    if len(lines) != len(sources):
        raise InputError(f"{source} has {len(sources)} lines, but {path} has {len(lines)}")
    return lines


if __name__ == "__main__":
    run(main)
