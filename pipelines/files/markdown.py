"""Tables of Markdown."""

import statistics
from collections.abc import Sequence


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of Markdown, each with its end."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def mean_and_deviation(values: Sequence[float], digits: int) -> str:
    """The mean and, of several values, the standard deviation."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean
