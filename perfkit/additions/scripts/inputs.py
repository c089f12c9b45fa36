"""What a model is given: padding, and matrices of zeros, which it computes with for nothing."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from perfkit.additions.scripts.messages import limits
from perfkit.additions.shared.tensors import is_plain, tensors

LIMIT = limits("inputs")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # others lack some functions
Zeros = tuple[int, int, float]


class ZerosFound:
    """What is found of matrices that are nearly all zeros, in the first steps that are looked at."""

    def __init__(self) -> None:
        self._found = dict[int, Zeros | None]()  # by the step

    def look(self, step: int, matrices: Iterable[torch.Tensor]) -> None:
        if step not in self._found and len(self._found) < LIMIT.looks_at_zeros:
            self._found[step] = next(mostly_zeros(matrices), None)

    def lasting(self) -> Zeros | None:
        """What was found alike in all of them; a memory that fills has more numbers from step to step."""
        known = [each for each in self._found.values() if each]
        if len(known) < LIMIT.looks_at_zeros or len({each[:2] for each in known}) > 1:
            return None
        parts = [part for _, _, part in known]
        return known[-1] if max(parts) <= LIMIT.alike * min(parts) else None


def mostly_zeros(matrices: Iterable[torch.Tensor]) -> Iterator[Zeros]:
    """Those of the large, dense matrices that are nearly all zeros: rows, columns, the part that is not."""
    for each in filter(is_plain, matrices):
        if each.dtype in _FLOATS and each.dim() == 2 and each.numel() >= LIMIT.large_matrix:
            part = float(torch.count_nonzero(each) / each.numel())
            if part <= LIMIT.few_numbers:
                yield len(each), each.shape[1], part


def paddings(given: Any) -> Iterator[tuple[float, float, int]]:
    """How much of tensors fills up their rows of words, or of frames of features, at the end or the start."""
    for rows in filter(is_plain, tensors(given)):
        is_words = rows.dim() == 2 and rows.dtype in (torch.int32, torch.int64) and len(rows.unique()) > 2
        if is_words or (rows.dim() == 3 and rows.dtype in _FLOATS):  # or frames
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
