"""Buckets of lengths, with edges that are learnt from the data: the ones with which the least is padded.

An item of length l in a bucket up to e costs e - l of padding at most. Over all items that is a sum over buckets, and
the best edges are found by dynamic programming over a few hundred candidates (Fisher 1958, in one dimension).
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["learn_edges"]

_NUM_CANDIDATES = 400

Array = np.ndarray[Any, Any]


def learn_edges(lengths: Array, num_buckets: int) -> Array:
    """The upper edges of at most `num_buckets` buckets, growing; the last one is the longest length.

    Args:
        lengths: sorted, positive.
        num_buckets: at least 1.

    >>> learn_edges(np.array([1.0, 1.1, 5.0, 5.1, 5.2]), 2)
    array([1.1, 5.2])
    """
    edges = _candidates(lengths)
    num_buckets = min(num_buckets, len(edges))
    # Of what lies up to each edge: how many items, and the sum of their lengths.
    counts = np.searchsorted(lengths, edges, side="right")
    sums = np.concatenate([[0.0], np.cumsum(lengths, dtype=np.float64)])[counts]
    # cost[i, j]: what is padded in a bucket from edge i (not in it) to edge j. An edge 0 lies below all.
    counts, sums = np.concatenate([[0], counts]), np.concatenate([[0.0], sums])
    tops = np.concatenate([[0.0], edges])
    cost = tops * (counts - counts[:, None]) - (sums - sums[:, None])
    cost[np.tril_indices(len(tops))] = np.inf
    best, before = cost[0].copy(), []
    for _ in range(num_buckets - 1):
        through = best[:, None] + cost
        before.append(through.argmin(axis=0))
        best = through.min(axis=0)
    found = [len(edges)]
    for choice in reversed(before):
        found.append(int(choice[found[-1]]))
    best_edges: Array = edges[np.array(found[::-1]) - 1]
    return best_edges


def _candidates(lengths: Array) -> Array:
    """Lengths that an edge may be: evenly spread over the items, and over the lengths."""
    distinct = np.unique(lengths)
    if len(distinct) <= _NUM_CANDIDATES:
        return distinct
    half = _NUM_CANDIDATES // 2
    by_count = lengths[np.linspace(0, len(lengths) - 1, half).astype(np.int64)]
    at = np.searchsorted(lengths, np.linspace(lengths[0], lengths[-1], half), side="right") - 1
    return np.unique(np.concatenate([by_count, lengths[at], lengths[-1:]]))
