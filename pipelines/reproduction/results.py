"""What the runs of a table scored, as the values of a JSON file."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.config import RunConfig
from pipelines.corpora.text_files import read_lines
from pipelines.errors import InputError
from pipelines.reproduction.runs import Run
from pipelines.reproduction.tables import Row, Table
from pipelines.run.directory import RunDirectory
from pipelines.run.metrics import compute, sacrebleu_metrics
from pipelines.run.significance import paired_bootstrap

_OF_THE_RUN = ("minutes", "date", "device")
_REMEDY = ": remove its reproduction.json, and it is translated and scored again"
_OF_THE_SCORE = ("checkpoint", "step", "beam_size", "alpha")
_OF_THE_CODE = ("commit", "version")  # neither is known everywhere


class Text(NamedTuple):
    """What the runs translated to be scored.

    Attributes:
        corpus: its name.
        split: "test" or "valid".
        references: the right translations.
        target_language: their language's code.
    """

    corpus: str
    split: str
    references: Sequence[str]
    target_language: str


def results(
    table: Table, runs: Mapping[str, Sequence[Run]], config: RunConfig, text: Text
) -> dict[str, Any]:
    """The table as far as its runs are finished.

    Args:
        table: which.
        runs: by the name of the row, those that are finished, in the order of their seeds.
        config: what the runs have in common.
        text: what they are scored on.

    Returns:
        What `docs/pages/reproduction.md` describes: of each row the scores, their mean and their
        spread, and paired bootstrap tests against the run of the same seed in the baseline.

    Raises:
        InputError: a run directory cannot be read, or lacks what the table tells of it.
    """
    translations = {
        name: {run.seed: translations_of(run, len(text.references)) for run in several}
        for name, several in runs.items()
    }
    scorer = _Scorer(text.target_language, text.references)
    baseline = translations.get(table.baseline, {})
    rows = []
    for row in table.rows:
        scored = [
            {**scorer.scores(translations[row.name][run.seed]), **run_facts(run, text.split)}
            for run in runs.get(row.name, ())
        ]
        pairs = [
            (baseline[seed], lines)
            for seed, lines in translations.get(row.name, {}).items()
            if seed in baseline and row.name != table.baseline
        ]
        rows.append({**_row(row, scored), "against_baseline": scorer.compared(pairs)})
    return {
        "table": table.number,
        "title": table.title,
        "paper_columns": list(table.paper_columns),
        "baseline": table.baseline,
        "corpus": text.corpus,
        "split": text.split,
        "sentences": len(text.references),
        "signatures": scorer.signatures,
        "config": config.to_dict(),
        "rows": rows,
    }


class _Scorer:
    """BLEU and chrF against one reference."""

    def __init__(self, target_language: str, references: Sequence[str]):
        metrics = sacrebleu_metrics(target_language)
        self._metrics = {name: metrics[name] for name in ("bleu", "chrf")}
        self._references = [references]
        self.signatures: dict[str, str] = {}

    def scores(self, translations: Sequence[str]) -> dict[str, float]:
        found = compute(self._metrics, translations, self._references)
        self.signatures |= {name: score.signature for name, score in found.items()}
        return {name: round(score.score, 4) for name, score in found.items()}

    def compared(self, pairs: Sequence[tuple[list[str], list[str]]]) -> list[dict[str, float]]:
        """BLEU of the second of each pair of translations against that of the first."""
        bleu = {"bleu": self._metrics["bleu"]}
        found: list[dict[str, float]] = []
        for baseline, translations in pairs:
            test = paired_bootstrap(bleu, baseline, translations, self._references)["bleu"]
            self.signatures["bootstrap"] = test.signature
            found.append({"difference": round(test.difference, 4), "p_value": test.p_value})
        return found


def run_facts(run: Run, split: str) -> dict[str, Any]:
    """When and where a run was trained, and which weights were scored."""
    # Not those of `evaluate`, which name files, as a split may be called as well.
    own = (score for score in RunDirectory(run.path).scores() if "reference" not in score)
    scores = [score for score in own if score.get("split") == split]
    if not scores:
        raise InputError(
            f"{run.path} must have scores of {split} in scores.json, got none{_REMEDY}"
        )
    record = run.record()
    facts = {name: record.get(name) for name in _OF_THE_RUN}
    facts |= {name: scores[-1].get(name) for name in _OF_THE_SCORE}
    if missing := [name for name, value in facts.items() if value is None]:
        raise InputError(f"{run.path} must tell in its JSON files of {missing[0]}, which is absent")
    facts |= {name: scores[-1].get(name) for name in _OF_THE_CODE}
    return {"seed": run.seed, "run": run.path.name, **facts}


def check_finished(runs: Iterable[Run], split: str, sentences: int) -> None:
    """Checks that the runs that are finished have what is told of them: before others are trained.

    Raises:
        InputError: one lacks it.
    """
    for run in runs:
        if run.is_finished():
            run_facts(run, split)
            translations_of(run, sentences)


def translations_of(run: Run, sentences: int) -> list[str]:
    """What a run translated of its split.

    Raises:
        InputError: the file cannot be read, or has not so many lines.
    """
    path = run.translations_path()
    translations = list(read_lines(str(path)))
    if len(translations) != sentences:
        raise InputError(
            f"{path} must have {sentences:,} translations, one of each sentence of the text that "
            f"is scored, got {len(translations):,}{_REMEDY}"
        )
    return translations


def _row(row: Row, scored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values = {name: [each[name] for each in scored] for name in ("bleu", "chrf")}
    return {
        "name": row.name,
        "label": row.label,
        "model": dict(row.model),
        "training": dict(row.training),
        "paper": list(row.paper),
        "runs": list(scored),
        **{name: summary(several) for name, several in values.items() if several},
    }


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, standard deviation and range over the seeds; one seed alone has no deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {
        "mean": round(statistics.mean(values), 4),
        "deviation": None if deviation is None else round(deviation, 4),
        "least": min(values),
        "most": max(values),
    }
