"""What joins queries to keys (Shaw et al. 2018).

`Relations` are `RelativePositions` (section 3.2), or integer labels (section 3.1): `[T, S]` for
every sentence alike, `[B, T, S]`, or `[B, T, S, L]` with up to L labels on an edge, whose vectors
add. A label below 0 is no edge and adds nothing.

Axes: B batch, T query positions, S key positions, L labels an edge.
"""

from __future__ import annotations

from collections.abc import Callable

from keras import ops

from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Tensor

Relations = Tensor | RelativePositions


def is_shared(relations: Relations) -> bool:
    """Whether all sentences have the same."""
    return isinstance(relations, RelativePositions) or len(relations.shape) == 2


def tensors_of(relations: Relations) -> tuple[tuple[Tensor, ...], Callable[..., Relations]]:
    """The tensors in `relations`, and how to make these of others: what has a gradient of its own
    must be given all tensors that it uses."""
    if relations is None:
        return (), lambda: None
    if not isinstance(relations, RelativePositions):
        return (ops.convert_to_tensor(relations),), lambda labels: labels
    if not ops.is_tensor(relations.query_offset):
        return (), lambda: relations
    return (relations.query_offset,), lambda offset: relations._replace(query_offset=offset)
