"""Scores a trained model: python -m pipelines.evaluate --run_dir DIR --source F --reference F"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.command_line import lasting_output, parse_flags, run
from pipelines.corpora.text_files import read_lines
from pipelines.errors import InputError
from pipelines.importing import load_tensorflow
from pipelines.translators.base import check_search
from tf_relpos.config import ALPHA, BEAM_SIZE

DESCRIPTION = """Translate a text with a trained model and score it with sacreBLEU. The score is
printed with its signature and appended to scores.json in the run directory."""


@dataclass(frozen=True)
class EvaluateFlags:
    """What to score."""

    run_dir: str
    """the directory of a training run"""
    source: str
    """text to translate, plain or gzipped, a sentence a line"""
    reference: str
    """its reference translation, line by line"""
    checkpoint: Literal["last", "best", "average"] = "last"
    """which weights"""
    beam_size: int = BEAM_SIZE
    """hypotheses kept; 1 is greedy search"""
    alpha: float = ALPHA
    """length penalty"""

    def __post_init__(self) -> None:
        check_search(beam_size=self.beam_size, alpha=self.alpha)


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(EvaluateFlags, DESCRIPTION, "python -m pipelines.evaluate", arguments)
    sources, references = list(read_lines(flags.source)), list(read_lines(flags.reference))
    if len(sources) != len(references):
        raise InputError(
            f"{flags.source} has {len(sources)} lines, but {flags.reference} has {len(references)}"
        )

    load_tensorflow()
    from pipelines.run.directory import RunDirectory
    from pipelines.run.metrics import bleu
    from pipelines.run.scoring import score_record
    from pipelines.translators.keras_model import load_translator

    run_directory = RunDirectory(flags.run_dir)
    search = {"beam_size": flags.beam_size, "alpha": flags.alpha}
    translator, step = load_translator(run_directory, flags.checkpoint, **search)
    config = run_directory.config()
    score = bleu(translator.translate(sources), references, config.corpus.target_language)
    where = {"split": flags.source, "checkpoint": flags.checkpoint, "step": step}
    # What took minutes is shown even if the directory cannot be written, and kept even if the
    # reader of the output has gone.
    with lasting_output():
        signature = f"{score.signature}|checkpoint:{flags.checkpoint}|step:{step}"
        print(f"BLEU {score.score:.2f}  ({signature})", flush=True)
    run_directory.add_score(score_record(config, score, **where, **search))


if __name__ == "__main__":
    run(main)
