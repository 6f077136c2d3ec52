"""The two terms that relations add to attention, as pure functions (Shaw et al. 2018, section 3.3).

    relation_scores   x_i W^Q (a^K_ij)^T        the second term of Eq. 5
    relation_values   sum_j alpha_ij a^V_ij     the second term of Eq. 3

Axes: N heads, B batch, T query positions, S key positions, H head size, R labels, L labels an edge.

The `relations` are those of `tf_relpos.relations`. A `table` of label vectors is `[R, H]`, shared
by the heads, or `[N, R, H]`.

Both implementations are exact: `tf_relpos.transpose_reshape`, which is the paper's, and
`tf_relpos.bucketed`.
"""

from __future__ import annotations

from tf_relpos import bucketed, transpose_reshape
from tf_relpos.checks import check_choice
from tf_relpos.config import IMPLEMENTATIONS
from tf_relpos.execution import has_gpu
from tf_relpos.relations import Relations
from tf_relpos.relative_positions import RelativePositions
from tf_relpos.tensor_ops import Tensor

LONGEST_ON_GPU = 128  # S up to which "auto" is the paper's form there: chosen, not measured

_FORMS = {"transpose_reshape": transpose_reshape, "bucketed": bucketed}


def relation_scores(
    query: Tensor,
    relations: Relations,
    table: Tensor,
    implementation: str = "auto",
) -> Tensor:
    """`x_i W^Q (a^K_ij)^T`, the second term of Eq. 5, unscaled.

    Args:
        query: `[N, B, T, H]`.
        relations: see the module.
        table: the key vectors `w^K` of the labels, `[R, H]` or `[N, R, H]`.
        implementation: "auto", "transpose_reshape" or "bucketed".

    Returns:
        `[N, B, T, S]`.
    """
    form = _FORMS[choose_implementation(implementation, relations, table)]
    return form.scores(query, relations, table)


def relation_values(
    weights: Tensor, relations: Relations, table: Tensor, implementation: str = "auto"
) -> Tensor:
    """`sum_j alpha_ij a^V_ij`, the second term of Eq. 3.

    Args:
        weights: attention weights alpha, `[N, B, T, S]`.
        relations: see the module.
        table: the value vectors `w^V` of the labels, `[R, H]` or `[N, R, H]`.
        implementation: "auto", "transpose_reshape" or "bucketed".

    Returns:
        `[N, B, T, H]`.
    """
    form = _FORMS[choose_implementation(implementation, relations, table)]
    return form.values(weights, relations, table)


def choose_implementation(implementation: str, relations: Relations, table: Tensor) -> str:
    """Resolves "auto": bucketing, save for one query, which the paper's form needs one product for,
    and where a graph knows that sentences are short.

    `pipelines.benchmark.attention` measured it on CPU cores (results beside it), with R = 17, 33
    and 129: where all sentences have the labels `[T, S]`, bucketing is the faster one from about
    S = R on, or if the table has heads from S = R / 2 on; eagerly it is from 3 R / 2 and R on. On a
    GPU
    (`pipelines.benchmark.gpu_attention`) the paper's form is at 64 positions, and bucketing at
    1,024; what lies between was not measured.

    Raises:
        ValueError: `implementation` is none of `IMPLEMENTATIONS`.
    """
    if check_choice("implementation", implementation, IMPLEMENTATIONS) != "auto":
        return implementation
    *heads, num_labels, _ = table.shape
    T, S = None, None
    if isinstance(relations, RelativePositions):
        T, S = relations.query_length, relations.key_length
    elif len(relations.shape) == 2:
        T, S = relations.shape
    is_one = isinstance(T, int) and T == 1
    longest = longest_in_the_paper_s_form(num_labels, shared=not heads)
    if has_gpu():
        longest = LONGEST_ON_GPU if isinstance(relations, RelativePositions) else 0
    is_short = isinstance(S, int) and longest >= S
    return "transpose_reshape" if is_one or is_short else "bucketed"


def longest_in_the_paper_s_form(num_labels: int, shared: bool) -> int:
    """S up to which it is taken on CPUs."""
    return num_labels if shared else num_labels // 2
