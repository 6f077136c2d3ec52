"""The end of a training run: test score, sample translations, export."""

import subprocess

from pipelines.config import RunConfig
from pipelines.data.preparation import Prepared
from pipelines.exporters.exportable import Exportable
from pipelines.exporters.saved_model import export_saved_model
from pipelines.run.directory import RunDirectory
from pipelines.run.scoring import bleu
from pipelines.translators.keras_model import load_translator

_SAMPLES = 3


def finish(
    config: RunConfig, prepared: Prepared, run: RunDirectory, export_dir: str | None
) -> None:
    """Scores the test set, prints translations, and exports a SavedModel.

    The weights are the average of the last checkpoints where `average_checkpoints` asks for one,
    else those of the last.
    """
    checkpoint = "last"
    translator, step = load_translator(run)
    if config.training.average_checkpoints > 1:
        checkpoint = "average"
        run.checkpoints.average(translator.model, config.training.average_checkpoints)
    split = next((name for name in ("test", "valid") if name in prepared.splits), None)
    if split:
        sources, references = prepared.text(split)
        translations = translator.translate(sources)
        score = bleu(translations, references)
        run.add_score(score_record(run, split, score, checkpoint, step, translator))
        print(f"{split} BLEU {score.score:.2f}  ({score.signature})")
        for source, translation in list(zip(sources, translations, strict=True))[:_SAMPLES]:
            print(f"  {source}\n  -> {translation}")
    if export_dir:
        path = export_saved_model(Exportable.from_run(translator, run), export_dir)
        print(f"exported {path}", flush=True)


def score_record(run, split, score, checkpoint, step, translator) -> dict:
    """A score with all that it takes to repeat it."""
    config = run.config()
    return {
        "split": split,
        "bleu": round(score.score, 4),
        "signature": score.signature,
        "checkpoint": checkpoint,
        "step": step,
        "beam_size": translator.beam_size,
        "alpha": translator.alpha,
        "seed": config.training.seed,
        "preset": config.preset,
        "position": config.model.position,
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit of the code, where it runs from a checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() or None
