"""What a model is given: padding, and matrices of zeros, which it computes with for nothing."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from perfkit.additions.scripts.messages import limits
from perfkit.additions.shared.tensors import tensors

LIMIT = limits("inputs")


def mostly_zeros(matrices: Iterable[torch.Tensor]) -> Iterator[tuple[int, int, float]]:
    """Those of the large, dense matrices that are nearly all zeros: rows, columns, the part that is not."""
    for each in matrices:
        is_dense = each.layout == torch.strided and each.is_floating_point() and not each.is_nested
        if is_dense and each.dim() == 2 and each.numel() >= LIMIT.large_matrix:
            part = float(torch.count_nonzero(each) / each.numel())
            if part <= LIMIT.few_numbers:
                yield len(each), each.shape[1], part


def paddings(given: Any) -> Iterator[tuple[float, float, int]]:
    """How much of tensors fills up their rows of words, or of frames of features, at the end or the start."""
    for rows in tensors(given):
        if rows.is_nested or rows.layout != torch.strided:
            continue
        is_words = rows.dim() == 2 and rows.dtype in (torch.int32, torch.int64) and len(rows.unique()) > 2
        if is_words or (rows.dim() == 3 and rows.is_floating_point()):  # or frames
            turned = rows.transpose(0, 1)  # the time may come first
            for each in (rows, rows.flip(1), turned, turned.flip(1)):
                yield from _padding_at_the_end(each, is_words)


def _padding_at_the_end(rows: torch.Tensor, is_words: bool) -> Iterator[tuple[float, float, int]]:
    """The mean share of rows that is padding, the share beyond the longest of them, and their length."""
    length = rows.shape[1]
    if length < LIMIT.long_row or not rows.any():
        return
    used = rows.ne(rows[:, -1].mode().values) if is_words else rows.ne(0).any(2)
    ends = (used * torch.arange(1, length + 1, device=rows.device)).amax(1)  # of each row, without padding
    is_dense = float(used.sum() / ends.sum()) >= LIMIT.least_inside  # no table of categories, mostly usual
    are_rows = float(ends.eq(0).float().mean()) <= LIMIT.most_empty  # else they are steps of time
    if are_rows and (is_dense or not is_words):
        filled = ends / length
        yield float(1 - filled.mean()), float(1 - filled.max()), length
