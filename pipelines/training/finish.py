"""The end of a training run: test score, sample translations, export."""

import logging
from collections.abc import Sequence
from pathlib import Path

from pipelines.data.preparation import Prepared
from pipelines.errors import quoted
from pipelines.exporters.exportable import Exportable
from pipelines.exporters.registry import FORMATS
from pipelines.exporters.versions import AlreadyExported
from pipelines.files.atomic import write_text
from pipelines.run.directory import TrainingRun
from pipelines.run.metrics import compute, sacrebleu_metrics
from pipelines.run.models import build_model
from pipelines.run.scoring import score_record
from pipelines.translators.keras_model import Translator, load_run

_SAMPLES = 3
_LOG = logging.getLogger(__name__)


def finish(
    prepared: Prepared, run: TrainingRun, export_dir: str | Path | None, splits: Sequence[str]
) -> None:
    """Scores the first of some splits that there is, shows translations, exports a SavedModel.

    The weights are those that `run.choose()` names, once the last checkpoints are averaged where
    `average_checkpoints` asks for it.
    """
    config = run.provenance.config
    if config.training.average_checkpoints > 1:
        _average(run, config.training.average_checkpoints)
    loaded = load_run(run)
    translator = Translator.of(loaded)
    split = next((name for name in splits if name in prepared.splits), None)
    if split:
        sources, references = prepared.text(split)
        translations = translator.translate(sources)
        write_text(run.translations_path, "".join(f"{line}\n" for line in translations))
        metrics = sacrebleu_metrics(config.corpus.target_language)
        shown = {name: metrics[name] for name in ("bleu", "chrf")}
        scores = compute(shown, translations, [references])
        run.add_score(
            score_record(
                config,
                scores,
                split=split,
                checkpoint=loaded.checkpoint,
                step=loaded.step,
                beam_size=translator.beam_size,
                alpha=translator.alpha,
            )
        )
        which = f"checkpoint:{loaded.checkpoint}|step:{loaded.step}"
        for score in scores.values():
            told = (split, score.name, score.score, score.signature, which)
            _LOG.info("%s %s %.2f  (%s|%s)", *told)
        show_samples(sources, translations)
    if export_dir:
        export = FORMATS["saved_model"].load()
        try:
            _LOG.info("exported %s", export(Exportable.from_run(translator, run), export_dir))
        except AlreadyExported as same:
            _LOG.info("exported already: %s", same.path)


def show_samples(sources: Sequence[str], translations: Sequence[str]) -> None:
    """Logs the first translations with their sources, as text that a terminal does not obey."""
    for pair in list(zip(sources, translations, strict=True))[:_SAMPLES]:
        _LOG.info("  %s\n  -> %s", *(quoted(text, 1000) for text in pair))


def _average(run: TrainingRun, asked: int) -> None:
    """Averages the last checkpoints, as many as asked for or all that there are."""
    steps = run.checkpoints.average(build_model(run.provenance.config.model), asked)
    fewer = f" alone, where {asked} were asked for" if len(steps) < asked else ""
    which = ", ".join(f"{step:,}" for step in steps)
    _LOG.info("average of the checkpoints of step %s%s", which, fewer)
