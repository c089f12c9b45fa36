"""The inputs of a model: their padding, and matrices of zeros, both of which cost time without any use."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from perfkit.additions.scripts.messages import limits
from perfkit.additions.shared.tensors import is_plain, tensors

LIMIT = limits("inputs")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # others lack some functions
Zeros = tuple[int, int, float]  # rows, columns, and the share of numbers that are not zero


class ZerosFound:
    """Matrices that are nearly all zeros, in the first steps that are looked at."""

    def __init__(self) -> None:
        self._zeros = dict[int, Zeros | None]()  # by the step

    def look(self, step: int, matrices: Iterable[torch.Tensor]) -> None:
        if step not in self._zeros and len(self._zeros) < LIMIT.looks_at_zeros:
            self._zeros[step] = next(mostly_zeros(matrices), None)

    def lasting(self) -> Zeros | None:
        """The matrix that all steps had, about equally full; a memory that fills up does not count."""
        zeros = [matrix for matrix in self._zeros.values() if matrix]
        shapes = {(rows, columns) for rows, columns, _ in zeros}
        if len(zeros) < LIMIT.looks_at_zeros or len(shapes) > 1:
            return None
        parts = [part for _, _, part in zeros]
        return zeros[-1] if max(parts) <= LIMIT.alike * min(parts) else None


def mostly_zeros(matrices: Iterable[torch.Tensor]) -> Iterator[Zeros]:
    """The large, dense matrices that are nearly all zeros."""
    for matrix in filter(is_plain, matrices):
        if matrix.dtype in _FLOATS and matrix.dim() == 2 and matrix.numel() >= LIMIT.large_matrix:
            part = float(torch.count_nonzero(matrix) / matrix.numel())
            if part <= LIMIT.few_numbers:
                yield len(matrix), matrix.shape[1], part


def paddings(inputs: Any) -> Iterator[tuple[float, float, int]]:
    """The padding at either end of rows of words, or of frames of features, as in `_padding_at_the_end`."""
    for rows in filter(is_plain, tensors(inputs)):
        is_words = rows.dim() == 2 and rows.dtype in (torch.int32, torch.int64) and len(rows.unique()) > 2
        is_frames = rows.dim() == 3 and rows.dtype in _FLOATS
        if is_words or is_frames:
            transposed = rows.transpose(0, 1)  # the time may come first
            for view in (rows, rows.flip(1), transposed, transposed.flip(1)):
                yield from _padding_at_the_end(view, is_words)


def _padding_at_the_end(rows: torch.Tensor, is_words: bool) -> Iterator[tuple[float, float, int]]:
    """The mean share of padding in rows, its share in the longest row, and the length of a row."""
    length = rows.shape[1]
    if length < LIMIT.long_row or not rows.any():
        return
    used = rows.ne(rows[:, -1].mode().values) if is_words else rows.ne(0).any(2)
    ends = (used * torch.arange(1, length + 1, device=rows.device)).amax(1)  # of each row, without padding
    is_dense = float(used.sum() / ends.sum()) >= LIMIT.least_inside  # a table repeats a category anywhere
    are_rows = float(ends.eq(0).float().mean()) <= LIMIT.most_empty  # else the first dimension is time
    if are_rows and (is_dense or not is_words):
        filled = ends / length
        yield float(1 - filled.mean()), float(1 - filled.max()), length
