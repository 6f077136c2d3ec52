"""A table of one's own: a configuration, and changes to it, each by itself."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from pipelines.config import RunConfig, TrainingConfig
from pipelines.errors import InputError
from pipelines.flag_parser import Parser
from pipelines.reproduction.tables import Row, Table
from pipelines.training.flags import Asked, check_fits_together, refuse_without_effect
from tf_relpos.config import TransformerConfig

_BASELINE = "baseline"
_SAME = {"seed", "initialize_from", "vocabulary_size", "strategy", "virtual_cpus", "log_every"}
_CHANGEABLE = {
    field.name
    for section in (TransformerConfig, TrainingConfig)
    for field in dataclasses.fields(section)
    if field.metadata.get("cmd", True) and field.name not in _SAME
}


def table_of_changes(asked: Asked) -> Table:
    """The configuration that was asked for, and a row for each of `changes`.

    Raises:
        InputError: a change that is no flag of the model or of training, whose value is none of
            this flag, that changes nothing, is there twice, or does not fit the configuration.
    """
    rows = [Row(_BASELINE, _BASELINE, {}, run=_BASELINE)]
    for change in asked.flags.changes:
        try:
            row = _row(change, asked)
            if any((row.model, row.training) == (other.model, other.training) for other in rows):
                raise InputError("the row is there already")
        except InputError as error:
            raise InputError(f"changes: {change}: {error}") from error
        rows.append(row)
    if len(rows) == 1:
        raise InputError("changes must have values, got none")
    return Table(None, "One change at a time", (), _BASELINE, rows, splits=("valid",))


def _row(change: str, asked: Asked) -> Row:
    """The row of `name=value`, or of several with commas between; a value may have some as well."""
    flags: dict[str, str] = {}
    for assignment in re.split(r",(?=[^,]*=)", change):
        name, is_one, value = (part.strip() for part in assignment.partition("="))
        name = name.replace("-", "_")
        if not (name and is_one and value):
            raise InputError("must be name=value, with commas between several")
        if name not in _CHANGEABLE:
            raise InputError(f"{name} is no flag that a row may change")
        if name in flags:
            raise InputError(f"{name} stands there twice")
        flags[name] = value
    config = asked.config
    parser = Parser("", "python -m pipelines.ablate")
    parser.add_section(TransformerConfig, "model", default=config.model)
    parser.add_section(TrainingConfig, "training", default=config.training)
    found = parser.parse([f"--{name}={value}" for name, value in flags.items()])
    refuse_without_effect(flags, found.model)
    changed = RunConfig(config.preset, found.model, config.corpus, found.training)
    if changed == config:
        raise InputError("must differ from the baseline")
    check_fits_together(changed, asked.flags.prepared)
    # By its values, however they were spelt: what is trained is found again.
    values = {**vars(found.model), **vars(found.training)}
    name = ",".join(f"{name}={_spelt(value)}" for name, value in values.items() if name in flags)
    model, training = (
        _differences(getattr(config, section), getattr(changed, section))
        for section in ("model", "training")
    )
    return Row(name, name, model, training=training, run=name)


def _spelt(value: Any) -> str:
    text = str(value).removesuffix(".0")
    return text.lower() if value is None or isinstance(value, bool) else text


def _differences(before: Any, after: Any) -> dict[str, Any]:
    """The fields of a dataclass that are others than before."""
    names = [field.name for field in dataclasses.fields(after)]
    values = {name: getattr(after, name) for name in names}
    return {name: value for name, value in values.items() if value != getattr(before, name)}
