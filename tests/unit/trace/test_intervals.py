"""Interval arithmetic against a count of unit cells."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfkit.trace.intervals import merge, partition, weighted

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


@given(spans)
def test_overlapping_values_are_summed_and_capped(pairs):
    start = np.array([a for a, _ in pairs] or [0], np.int64)
    end = np.array([max(a, b) for a, b in pairs] or [0], np.int64)
    _, area = weighted(start, end, np.full(len(start), 0.4))
    height = [
        min(sum(a <= cell < b for a, b in zip(start, end, strict=True)) * 0.4, 1.0) for cell in range(60)
    ]
    assert np.isclose(area[-1], sum(height))
