"""The model of `pipelines.graphs.model` with a layer of PyTorch Geometric for its attention.

The edges are the same: of the graph, their inverse, and from each node to itself. A node hears from
the nodes that it has a label for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch_geometric import nn as relational
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from pipelines.graphs.batches import batches, num_relations, plan
from pipelines.graphs.config import ModelConfig, TrainingConfig
from pipelines.graphs.graph import Graph, Task
from pipelines.graphs.training import CLIPPED_AT, steps_per_epoch
from pipelines.training.schedule import warmup_then_cosine


class GraphNetwork:
    """A model with a relational layer of PyTorch Geometric, trained as `pipelines.graphs` trains,
    by one thread."""

    def __init__(
        self,
        layer: str,
        task: Task,
        model_config: ModelConfig,
        config: TrainingConfig,
        train_data: Sequence[Data],
        test_data: Sequence[Data],
    ):
        torch.set_num_threads(1)
        torch.manual_seed(config.seed)
        self.config = config
        self.steps = steps_per_epoch(task, config)
        labels = len(task.labels)
        self.train_data, self.test_data = train_data, test_data
        relations = num_relations(labels, "graph")
        sizes = task.node_kinds, relations, len(task.classes)
        self.model = _Model(layer, model_config, *sizes)
        self.parameters = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), config.learning_rate, weight_decay=config.weight_decay
        )
        updates = self.steps * config.epochs
        schedule = warmup_then_cosine(updates, 1.0)
        shares = [float(schedule(step)) for step in range(updates + 1)]
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, shares.__getitem__)

    def train(self, epoch: int) -> None:
        self.model.train()
        for batch in self._batches(self.train_data, (self.config.seed, epoch)):
            is_asked = batch.y >= 0
            logits = self.model(batch)[is_asked]
            loss = nn.functional.cross_entropy(logits, batch.y[is_asked])
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), CLIPPED_AT)
            self.optimizer.step()
            self.schedule.step()

    @torch.no_grad()
    def accuracy(self) -> float:
        self.model.eval()
        right = asked = 0
        for batch in self._batches(self.test_data, None):
            is_asked = batch.y >= 0
            right += int((self.model(batch).argmax(-1) == batch.y)[is_asked].sum())
            asked += int(is_asked.sum())
        return right / asked

    def _batches(self, data: Sequence[Data], seed: tuple[int, int] | None) -> DataLoader:
        numbers = plan([graph.num_nodes for graph in data], self.config.batch_nodes, seed)
        return DataLoader(data, batch_sampler=[batch.tolist() for batch in numbers])


def as_data(graphs: Sequence[Graph], num_labels: int, nodes: int) -> list[Data]:
    """The graphs with the edges that `pipelines.graphs.batches` makes of theirs.

    Args:
        graphs: see `Graph`.
        num_labels: E, of their edges.
        nodes: of a batch, in which labels are made.
    """
    found = {}
    numbers = plan([len(graph.nodes) for graph in graphs], nodes, None)
    labelled = batches(graphs, num_labels, "graph", nodes).as_numpy_iterator()
    for batch, (inputs, _, _) in zip(numbers, labelled, strict=True):
        for number, relations in zip(batch.tolist(), inputs["relations"], strict=True):
            found[number] = _data(graphs[number], relations)
    return [found[number] for number in range(len(graphs))]


def _data(graph: Graph, relations: np.ndarray) -> Data:
    T = len(graph.nodes)
    relations = relations[:T, :T]
    queries, keys = np.nonzero(relations >= 0)
    return Data(
        x=torch.from_numpy(graph.nodes).long(),
        edge_index=torch.from_numpy(np.stack([keys, queries])),  # from, to
        edge_type=torch.from_numpy(relations[queries, keys]).long(),
        y=torch.from_numpy(graph.targets).long(),
        num_nodes=T,
    )


class _Model(nn.Module):
    def __init__(
        self, layer: str, config: ModelConfig, node_kinds: int, relations: int, classes: int
    ):
        super().__init__()
        size = config.model_dim
        self.embedding = nn.Embedding(node_kinds, size)
        self.blocks = nn.ModuleList(_Block(layer, config, relations) for _ in range(config.layers))
        self.norm = nn.LayerNorm(size)
        self.logits = nn.Linear(size, classes)

    def forward(self, batch: Batch) -> torch.Tensor:
        x = self.embedding(batch.x)
        for block in self.blocks:
            x = block(x, batch.edge_index, batch.edge_type)
        return self.logits(self.norm(x))


class _Block(nn.Module):
    def __init__(self, layer: str, config: ModelConfig, relations: int):
        super().__init__()
        size, heads = config.model_dim, config.num_heads
        self.norm = nn.LayerNorm(size)
        # Two of the layers take the labels themselves, the third a vector for each edge.
        self.vectors = nn.Embedding(relations, size) if layer == "TransformerConv" else None
        self.layer = {
            "TransformerConv": lambda: relational.TransformerConv(
                size, size // heads, heads, edge_dim=size
            ),
            "RGATConv": lambda: relational.RGATConv(size, size // heads, relations, heads=heads),
            "FastRGCNConv": lambda: relational.FastRGCNConv(size, size, relations),
        }[layer]()
        self.drop = nn.Dropout(config.dropout)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(size),
            nn.Linear(size, 2 * size),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(2 * size, size),
            nn.Dropout(config.dropout),
        )

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, edge_type: torch.Tensor
    ) -> torch.Tensor:
        edges = edge_type if self.vectors is None else self.vectors(edge_type)
        x = x + self.drop(self.layer(self.norm(x), edge_index, edges))
        return x + self.feed_forward(x)
