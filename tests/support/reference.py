"""Equations 3 and 4 of Shaw et al. 2018 as plain NumPy loops: the oracle of the attention tests.
With a `vector`, Eq. 4 gives way to the additive compatibility of Bahdanau et al. 2014.

Nothing here is shared with `tf_relpos`. Every sum of the paper is a Python loop over batch `b`,
head `n`, query `i` and key `j`, in float64. The backward pass is written out by hand in the same
loops, and `test_relation_ops.py` checks it against complex-step derivatives of the forward pass.
"""

import numpy as np


def position_labels(query_length, key_length, max_relative_position, query_offset=0):
    """Labels `[T, S]` of section 3.2, one pair at a time."""
    k = max_relative_position
    labels = np.zeros((query_length, key_length), "int32")
    for i in range(query_length):
        for j in range(key_length):
            labels[i, j] = max(-k, min(k, j - (i + query_offset))) + k
    return labels


def _labels(relations, b, i, j):
    """The labels on the edge from query `i` to key `j`: none, one or several."""
    pair = relations[i, j] if relations.ndim == 2 else relations[b, i, j]
    return [int(label) for label in np.atleast_1d(pair) if label >= 0]


def _row(table, n, label):
    """Row `label` of a table `[R, H]`, or of head `n` of a table `[N, R, H]`."""
    return table[label] if table.ndim == 2 else table[n, label]


def _edge(table, relations, b, n, i, j):
    """The edge vector a_ij: the sum of the rows of its labels, or 0 where there is no table."""
    if table is None:
        return 0.0
    return sum((_row(table, n, label) for label in _labels(relations, b, i, j)), 0.0)


def relation_scores(query, relations, table):
    """The second term of Eq. 5 without its scale: `q_i . a_ij`, `[B, N, T, S]`."""
    batch, queries, heads, _ = query.shape
    keys = relations.shape[1] if relations.ndim == 2 else relations.shape[2]
    scores = np.zeros((batch, heads, queries, keys), np.result_type(query, table))
    for b, n, i, j in np.ndindex(batch, heads, queries, keys):
        scores[b, n, i, j] = np.sum(query[b, i, n] * _edge(table, relations, b, n, i, j))
    return scores


def relation_values(weights, relations, table):
    """The second term of Eq. 3: `sum_j alpha_ij a_ij`, `[B, T, N, H]`."""
    batch, heads, queries, keys = weights.shape
    values = np.zeros((batch, queries, heads, table.shape[-1]), np.result_type(weights, table))
    for b, n, i, j in np.ndindex(batch, heads, queries, keys):
        values[b, i, n] += weights[b, n, i, j] * _edge(table, relations, b, n, i, j)
    return values


def attention(
    query,
    key,
    value,
    *,
    relations=None,
    key_table=None,
    value_table=None,
    mask=None,
    vector=None,
):
    """Eq. 3 and Eq. 4 over projected heads.

    Args:
        query: `[B, T, N, H]`.
        key: `[B, S, N, H]`.
        value: `[B, S, N, H']`.
        relations: integer labels `[T, S]`, `[B, T, S]` or `[B, T, S, L]`; negative means no label.
        key_table: a^K, `[R, H]` or `[N, R, H]`, or `None`.
        value_table: a^V, `[R, H']` or `[N, R, H']`, or `None`.
        mask: booleans `[B, T, S]`, true where a query may see a key; no row may be all false.
        vector: v of additive compatibility, `[N, H]`, or `None` for the scaled product.

    Returns:
        `z` of shape `[B, T, N, H']` and the weights alpha of shape `[B, N, T, S]`.
    """
    batch, queries, heads, size = query.shape
    keys = key.shape[1]
    dtype = np.result_type(
        query, key, value, *(t for t in (key_table, value_table, vector) if t is not None)
    )
    output = np.zeros((batch, queries, heads, value.shape[-1]), dtype)
    weights = np.zeros((batch, heads, queries, keys), dtype)
    for b, n, i in np.ndindex(batch, heads, queries):
        seen = [j for j in range(keys) if mask is None or mask[b, i, j]]
        scores = np.zeros(keys, dtype)
        for j in seen:
            edge = _edge(key_table, relations, b, n, i, j)
            if vector is None:
                scores[j] = np.sum(query[b, i, n] * (key[b, j, n] + edge)) / np.sqrt(size)
            else:
                scores[j] = np.sum(vector[n] * np.tanh(query[b, i, n] + key[b, j, n] + edge))
        total = sum(np.exp(scores[j]) for j in seen)
        for j in seen:
            weights[b, n, i, j] = np.exp(scores[j]) / total
            edge = _edge(value_table, relations, b, n, i, j)
            output[b, i, n] += weights[b, n, i, j] * (value[b, j, n] + edge)
    return output, weights


def attention_gradients(
    upstream,
    query,
    key,
    value,
    *,
    relations=None,
    key_table=None,
    value_table=None,
    mask=None,
    vector=None,
):
    """Gradients of `sum(upstream * z)` by query, key, value, both tables and v, as a dict."""
    _, weights = attention(
        query,
        key,
        value,
        relations=relations,
        key_table=key_table,
        value_table=value_table,
        mask=mask,
        vector=vector,
    )
    batch, queries, heads, size = query.shape
    keys = key.shape[1]
    gradients = {"query": np.zeros(query.shape), "key": np.zeros(key.shape)}
    gradients["value"] = np.zeros(value.shape)
    weights_of = {"key_table": key_table, "value_table": value_table, "vector": vector}
    for name, table in weights_of.items():
        if table is not None:
            gradients[name] = np.zeros(table.shape)
    for b, n, i in np.ndindex(batch, heads, queries):
        by_weight = np.zeros(keys)
        for j in range(keys):
            alpha = weights[b, n, i, j]
            edge = _edge(value_table, relations, b, n, i, j)
            by_weight[j] = np.sum(upstream[b, i, n] * (value[b, j, n] + edge))
            gradients["value"][b, j, n] += alpha * upstream[b, i, n]
            if value_table is not None:
                for label in _labels(relations, b, i, j):
                    _row(gradients["value_table"], n, label)[:] += alpha * upstream[b, i, n]
        mean = np.sum(weights[b, n, i] * by_weight)
        for j in range(keys):
            by_score = weights[b, n, i, j] * (by_weight[j] - mean)
            edge = _edge(key_table, relations, b, n, i, j)
            if vector is None:
                by_query = by_score * (key[b, j, n] + edge) / np.sqrt(size)
                by_key = by_score * query[b, i, n] / np.sqrt(size)
            else:
                tanh = np.tanh(query[b, i, n] + key[b, j, n] + edge)
                by_query = by_key = by_score * vector[n] * (1 - tanh**2)
                gradients["vector"][n] += by_score * tanh
            gradients["query"][b, i, n] += by_query
            gradients["key"][b, j, n] += by_key
            if key_table is not None:
                for label in _labels(relations, b, i, j):
                    _row(gradients["key_table"], n, label)[:] += by_key
    return gradients


def attention_layer(weights, query, value, key=None, *, relations=None, mask=None, upstream=None):
    """A whole attention layer: projections, Eq. 3 and 4, output projection.

    Args:
        weights: dict of float64 arrays: `query_kernel` `[D, N, H]`, `query_bias` `[N, H]`, the same
            for `key` and `value`, `output_kernel` `[N, H', D]`, `output_bias` `[D]`, and where in
            use `relation_key_embeddings`, `relation_value_embeddings` and `compatibility_vectors`.
        query: `[B, T, D]`.
        value: `[B, S, D]`.
        key: `[B, S, D]`, or `None` for `value`.
        relations: as in `attention`.
        mask: as in `attention`.
        upstream: `[B, T, D]`; where given, gradients of `sum(upstream * output)` are returned.

    Returns:
        The output `[B, T, D]`, the weights alpha `[B, N, T, S]`, and a dict of gradients by
        `query`, `value`, `key` (where given) and every name in `weights`, or `None`.
    """
    inputs = {"query": query, "value": value, "key": value if key is None else key}
    heads = {
        name: np.einsum("btd,dnh->btnh", x, weights[f"{name}_kernel"]) + weights[f"{name}_bias"]
        for name, x in inputs.items()
    }
    terms = {
        "relations": relations,
        "key_table": weights.get("relation_key_embeddings"),
        "value_table": weights.get("relation_value_embeddings"),
        "mask": mask,
        "vector": weights.get("compatibility_vectors"),
    }
    z, alpha = attention(heads["query"], heads["key"], heads["value"], **terms)
    output = np.einsum("btnh,nhd->btd", z, weights["output_kernel"]) + weights["output_bias"]
    if upstream is None:
        return output, alpha, None

    by_z = np.einsum("btd,nhd->btnh", upstream, weights["output_kernel"])
    by_heads = attention_gradients(by_z, heads["query"], heads["key"], heads["value"], **terms)
    gradients = {
        "output_kernel": np.einsum("btnh,btd->nhd", z, upstream),
        "output_bias": upstream.sum((0, 1)),
    }
    names = {
        "key_table": "relation_key_embeddings",
        "value_table": "relation_value_embeddings",
        "vector": "compatibility_vectors",
    }
    gradients.update({name: by_heads[own] for own, name in names.items() if own in by_heads})
    for name, x in inputs.items():
        gradients[f"{name}_kernel"] = np.einsum("btd,btnh->dnh", x, by_heads[name])
        gradients[f"{name}_bias"] = by_heads[name].sum((0, 1))
        gradients[name] = np.einsum("btnh,dnh->btd", by_heads[name], weights[f"{name}_kernel"])
    if key is None:
        gradients["value"] = gradients["value"] + gradients.pop("key")
    return output, alpha, gradients
