"""Generated graphs: families, and a question about people three hops away.

Each person has eyes of some colour, a mother and a father, the eldest aside. Asked for is the
colour of a person's mother's father's mother. All that tells who that is are labelled edges:
people stand in random order.
"""

from __future__ import annotations

import numpy as np

from pipelines.graphs.graph import Graph, Task, as_edges

LABELS = ("mother", "father")
COLOURS = ("amber", "blue", "brown", "gray", "green", "hazel")
QUESTION = ("mother", "father", "mother")
GENERATIONS = 4
COUPLES = (2, 4)  # of a generation, from and to


def family(rng: np.random.Generator) -> Graph:
    """A family of four generations, each with two to four couples."""
    sizes = [2 * int(rng.integers(COUPLES[0], COUPLES[1] + 1)) for _ in range(GENERATIONS)]
    T = sum(sizes)
    people = np.split(rng.permutation(T), np.cumsum(sizes)[:-1])  # the first half are women
    parents = np.full((2, T), -1)
    for elder, younger in zip(people, people[1:], strict=False):
        women, men = np.split(elder, 2)
        parents[:, younger] = rng.choice(women, len(younger)), rng.choice(men, len(younger))
    colours = rng.integers(0, len(COLOURS), T)
    asked, answer = people[-1], people[-1]
    for hop in QUESTION:
        answer = parents[LABELS.index(hop), answer]
    targets = np.full(T, -1, "int32")
    targets[asked] = colours[answer]
    edges = as_edges(
        (child, parents[label, child], label)
        for label in range(len(LABELS))
        for child in range(T)
        if parents[label, child] >= 0
    )
    names = tuple(COLOURS[colour] for colour in colours)
    return Graph(colours.astype("int32") + 1, edges, targets, names)


def family_task(train: int, test: int, seed: int) -> Task:
    """So many families to train on and, others, to test on."""
    rng = np.random.default_rng(seed)
    graphs = [family(rng) for _ in range(train + test)]
    return Task(graphs[:train], graphs[train:], LABELS, COLOURS, len(COLOURS) + 1)
