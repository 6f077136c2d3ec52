"""Relations beside graph networks of PyTorch Geometric: python -m pipelines.benchmark.graph_peer

The model of `pipelines.train_graph`, and the same model with its attention replaced by each of
PyTorch Geometric's relational layers: same graphs in the same batches, same sizes, same training.
They take turns of one epoch, with one
thread each; what is compared is accuracy, and steps of training a second. Needs
PyTorch and PyTorch Geometric: pip install -e '.[graphs,peers]'
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pipelines.benchmark.measuring import ratios, settings_of, take_one_thread, write_results
from pipelines.command_line import run
from pipelines.errors import InputError
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags
from pipelines.graphs.config import ModelConfig, TrainingConfig
from pipelines.importing import import_optional, load_keras
from pipelines.train_graph import GraphFlags, read

if TYPE_CHECKING:
    from pipelines.graphs.graph import Task

OURS = "RelationAwareAttention"
PEERS = ("TransformerConv", "RGATConv", "FastRGCNConv")


@dataclass(frozen=True)
class Benchmark:
    """What to learn."""

    train: str | None = None
    """a CoNLL-U file to train on; without one, the families of `pipelines.train_graph`"""
    test: str | None = None
    """another to test on"""
    hold_out: float | None = None
    """instead of --test: test on this share of the sentences of --train, the last"""
    epochs: int = TrainingConfig.epochs
    learning_rate: float = TrainingConfig.learning_rate
    seeds: int = 3
    """trainings of each"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        check_positive(self, "seeds", "epochs")
        if self.epochs < 2:
            raise InputError(f"epochs must be 2 or more: the first is not timed, got {self.epochs}")


class Contestant(Protocol):
    """A model and its training: its parameters, and the steps of an epoch."""

    parameters: int
    steps: int

    def train(self, epoch: int) -> None:
        """One epoch more."""

    def accuracy(self) -> float:
        """The share of the nodes to test on that it tells the class of."""


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.graph_peer", arguments)
    for module in ("torch", "torch_geometric"):
        import_optional(module, module, extra="peers")
    task = read(GraphFlags(flags.train, flags.test, flags.hold_out), seed=1)
    load_keras()
    take_one_thread()
    accuracies: dict[str, list[float]] = {name: [] for name in (OURS, *PEERS)}
    turns = []
    for seed in range(1, flags.seeds + 1):
        config = TrainingConfig(epochs=flags.epochs, learning_rate=flags.learning_rate, seed=seed)
        contestants = _contestants(task, config)
        turns += _race(contestants, config.epochs)
        for name, contestant in contestants.items():
            accuracies[name].append(contestant.accuracy())
            print(f"seed {seed}  {name:22}  test accuracy {accuracies[name][-1]:.3f}", flush=True)
    faster = ratios(turns, OURS)
    records = []
    for name, contestant in contestants.items():
        mean = statistics.mean(accuracies[name])
        rate = contestant.steps / statistics.median(turn[name] for turn in turns)
        records.append(
            {
                "name": name,
                "accuracy": mean,
                "accuracies": accuracies[name],
                "parameters": contestant.parameters,
                "steps_per_second": rate,
                "seconds_over_ours": faster.get(name, 1.0),
            }
        )
        print(
            f"{name:22}  test accuracy {mean:.3f}  {contestant.parameters:,} parameters  "
            f"{rate:.2f} steps/s  {faster.get(name, 1.0):.2f} of the time"
        )
    text = [Path(path).name for path in (flags.train, flags.test) if path]
    settings = {**settings_of(flags), "train": None, "test": None, "text": text}
    write_results(flags.output, settings=settings, contestants=records, turns=turns)


def _contestants(task: Task, config: TrainingConfig) -> dict[str, Contestant]:
    from pipelines.benchmark.torch_graphs import GraphNetwork, as_data

    data = [
        as_data(graphs, len(task.labels), config.batch_nodes) for graphs in (task.train, task.test)
    ]
    peers = {name: GraphNetwork(name, task, ModelConfig(), config, *data) for name in PEERS}
    return {OURS: _Ours(task, config), **peers}


def _race(contestants: dict[str, Contestant], epochs: int) -> list[dict[str, float]]:
    """Seconds of each contestant in each epoch but the first, which compiles."""
    turns: list[dict[str, float]] = []
    for epoch in range(epochs):
        turns.append({})
        for name, contestant in contestants.items():
            began = time.perf_counter()
            contestant.train(epoch)
            turns[-1][name] = time.perf_counter() - began
    return turns[1:]


class _Ours:
    def __init__(self, task: Task, config: TrainingConfig):
        from pipelines.graphs.training import new_model, steps_per_epoch

        self.task, self.config = task, config
        self.model = new_model(task, ModelConfig(), config)
        self.parameters = self.model.count_params()
        self.steps = steps_per_epoch(task, config)

    def train(self, epoch: int) -> None:
        from pipelines.graphs.batches import batches

        seeds = [(self.config.seed, epoch)]
        labels, relations = len(self.task.labels), self.config.relations
        data = batches(self.task.train, labels, relations, self.config.batch_nodes, seeds)
        self.model.fit(data, shuffle=False, verbose=0)

    def accuracy(self) -> float:
        from pipelines.graphs.training import accuracy

        return accuracy(self.model, self.task, self.config)


if __name__ == "__main__":
    run(main)
