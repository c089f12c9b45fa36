"""A small transformer that learns to continue a text, character by character: small products, no images.

The text is prose about making training faster, taken from this workbook. Any other file of text will do.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

CHARACTERS = 256
STRIDE = 16


def find_text(name: str) -> Path:
    """A text by its path, else in `$PERFKIT_DATA`, or in `data` of a folder above this file or the current.

    Raises:
        FileNotFoundError: it is in none of them.
    """
    here = [*Path(__file__).resolve().parents, Path.cwd(), *Path.cwd().parents]
    folders = [Path(), Path(os.environ.get("PERFKIT_DATA", "")), *(folder / "data" for folder in here)]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"there is no text '{name}'. Copy it from data/ of perfkit's source, or name your own"
    )


class Windows(Dataset[Any]):
    """Pieces of a text, and the same pieces one character on; a character is a byte of the file.

    The file is mapped, not read: loader workers share its pages.
    """

    def __init__(self, file: Path, context: int, kind: torch.dtype) -> None:
        self.text = np.memmap(file, dtype=np.uint8, mode="r")
        self.context = context
        self.kind = kind
        if len(self) < 1:
            raise ValueError(f"'{file}' has {len(self.text)} characters; a sample needs {context + 1}")

    def __len__(self) -> int:
        return (len(self.text) - self.context - 1) // STRIDE + 1

    def __getitem__(self, index: int) -> Any:
        start = index * STRIDE
        piece = torch.from_numpy(self.text[start : start + self.context + 1].copy())
        return piece[:-1].to(self.kind), piece[1:].to(self.kind)


class BatchedWindows(Windows):
    """The same pieces, a whole batch at a time."""

    def __getitems__(self, indices: list[int]) -> Any:
        at = np.asarray(indices)[:, None] * STRIDE + np.arange(self.context + 1)
        pieces = torch.from_numpy(self.text[at])
        return pieces[:, :-1].to(self.kind), pieces[:, 1:].to(self.kind)


class Block(nn.Module):
    """Attention to earlier characters, then two linear layers; each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.before_linear = nn.LayerNorm(width)
        self.linear = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attention(self, hidden: torch.Tensor) -> Any:
        """Every position sees itself and those before it."""
        split = self.queries_keys_values(hidden).unflatten(2, (3, self.heads, -1))
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.attended(seen.transpose(1, 2).flatten(2))

    def forward(self, hidden: torch.Tensor) -> Any:
        """float32[N, context, width] to the same shape."""
        hidden = hidden + self.attention(self.before_attention(hidden))
        return hidden + self.linear(self.before_linear(hidden))


class GPT(nn.Module):
    """Characters, int64[N, context], to the logits of the next ones, [N, context, 256]."""

    def __init__(self, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, text: torch.Tensor) -> Any:
        """int64[N, context] to float32[N, context, 256]."""
        positions = torch.arange(text.shape[1], device=text.device)
        hidden = self.characters(text) + self.positions(positions)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class TinyGPT:
    """A decoder-only transformer on a text of your choice, trained with AdamW.

    Args:
        context: characters that the model sees.
        width: of the hidden state.
        layers: blocks.
        heads: of the attention in a block; they share the width.
        text: a file, or its path below `data/`.

    Raises:
        ValueError: the width cannot be shared by the heads.
    """

    offers = frozenset({"uint8_copy", "batched_fetch"})
    presets = {
        "smoke": {"context": 32, "width": 32, "layers": 2, "heads": 2},
        "quick": {"context": 64, "width": 128, "layers": 4, "heads": 4},
        "paper": {"context": 128, "width": 384, "layers": 6, "heads": 6},
    }

    def __init__(
        self, context: int = 128, width: int = 384, layers: int = 6, heads: int = 6,
        text: str = "texts/workbook.txt",
    ) -> None:  # fmt: skip
        if width % heads:
            raise ValueError(f"{heads} heads cannot share a width of {width}: give a multiple of {heads}")
        self.context = context
        self.shape = {"width": width, "layers": layers, "heads": heads}
        self.text = text

    def dataset(self, recipe: Any) -> Any:
        """Overlapping pieces of the text; characters are indices, int64, but for a copy in uint8."""
        kind = torch.uint8 if recipe.uint8_copy else torch.int64
        windows = BatchedWindows if recipe.batched_fetch else Windows
        return windows(find_text(self.text), self.context, kind)

    def prepare(self, text: torch.Tensor, recipe: Any) -> torch.Tensor:
        """Bytes become indices on the device."""
        if recipe.uint8_copy:
            text = text.to(torch.int64)
        return text

    def model(self) -> nn.Module:
        """Pre-norm blocks between embeddings and a linear head."""
        return GPT(self.context, **self.shape)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross entropy of the next character."""
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten().to(torch.int64))

    def optimizer(self, parameters: Any, **implementation: Any) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(parameters, lr=1e-3, **implementation)
