"""Interval arithmetic against a count of unit cells."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfkit.trace.intervals import merge, partition

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def made(pairs):
    start = np.array([a for a, _ in pairs], np.int64)
    return merge(start, np.array([max(a, b) for a, b in pairs], np.int64))


def cells(pairs):
    return {cell for a, b in pairs for cell in range(a, max(a, b))}


@given(st.lists(spans, max_size=4), st.integers(0, 60), st.integers(0, 60))
def test_a_partition_gives_each_cell_to_the_first_layer_and_sums_to_the_window(layers, a, b):
    low, high = sorted((a, b))
    parts = partition([made(layer) for layer in layers], np.array([low]), np.array([high]))[:, 0].tolist()
    left = set(range(low, high))
    for layer, part in zip(layers, parts, strict=False):
        assert part == len(left & cells(layer))
        left -= cells(layer)
    assert parts[-1] == len(left)
    assert sum(parts) == high - low
