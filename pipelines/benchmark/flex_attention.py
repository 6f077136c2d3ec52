"""PyTorch's FlexAttention with the key term of Eq. 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import flex_attention


def attend(query: Any, key: Any, value: Any, table: Any) -> Any:
    """Eq. 3 and 5 without the value term, for which FlexAttention has no place.

    Args:
        query, key, value: `[B, N, T, H]`.
        table: the vectors of the distances, `[2k+1, H]` or `[N, 2k+1, H]`.

    Returns:
        `[B, N, T, H]`.
    """
    k = table.shape[-2] // 2
    of_labels = torch.matmul(query * query.shape[-1] ** -0.5, table.transpose(-1, -2))

    def add_key_term(score: Any, b: Any, n: Any, i: Any, j: Any) -> Any:
        return score + of_labels[b, n, i, torch.clamp(j - i, -k, k) + k]

    return flex_attention(query, key, value, score_mod=add_key_term)


def step(
    shape: tuple[int, ...], k: int, heads_share: bool, dtype: str
) -> tuple[Callable[[], Any], float]:
    """A forward and a backward pass on a GPU, compiled, and the megabytes that it holds at most.

    Args:
        shape: `[B, T, N, H]`.
        k: the clipping distance.
        heads_share: one table for all heads, or one for each.
        dtype: of queries, keys, values and table.
    """
    B, T, N, H = shape
    options: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, dtype)}
    inputs = [torch.randn((B, N, T, H), requires_grad=True, **options) for _ in range(3)]
    heads = () if heads_share else (N,)
    leaves = [*inputs, torch.randn((*heads, 2 * k + 1, H), requires_grad=True, **options)]
    torch.compiler.reset()  # or a second shape would be taken for one of many
    compiled = torch.compile(attend, dynamic=False)

    def gradients() -> Any:
        return torch.autograd.grad(compiled(*leaves).float().square().sum(), leaves)

    gradients()
    torch.cuda.reset_peak_memory_stats()
    wait(gradients())
    return gradients, torch.cuda.max_memory_allocated() / 1e6


def wait(results: Any) -> None:
    """Until all that was asked for is computed."""
    torch.cuda.synchronize()
