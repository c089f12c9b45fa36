"""A small transformer that learns to continue a text, this workbook's or yours, character by character."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import TensorDataset

from perfkit.workloads.files import text_file


class GPT(nn.Module):
    """Characters, int64[N, context], to the logits of the next ones, float32[N, context, 256]."""

    def __init__(self, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(256, width)
        self.positions = nn.Embedding(context, width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", 1e-5, True, True)
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> Any:
        hidden = self.characters(text) + self.positions.weight[: text.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        return self.head(self.blocks(hidden, mask, is_causal=True))


class WrittenOut(GPT):
    """The same in plain operators, which store the scores of attention."""

    def forward(self, text: torch.Tensor) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return super().forward(text)


def padded_lines(text: torch.Tensor, length: int) -> torch.Tensor:
    """The lines of a text, int64[lines, length], each cut or filled with zeros."""
    lines = [line[:length].ljust(length, b"\0") for line in bytes(text.tolist()).splitlines() if line]
    return torch.tensor([list(line) for line in lines])


@dataclass
class TinyGPT:
    """A decoder-only transformer on a text of your choice, trained with AdamW.

    Args:
        context: characters that the model sees.
        width: of the hidden state.
        layers: blocks.
        heads: of the attention in a block; they share the width.
        text: a file, or its path below `data/`.
        padded: each line is a sample, padded with zeros; else the text is packed into samples.
        stores_scores: attention in plain operators, which store its scores; else in one kernel.
    """

    context: int = 128
    width: int = 384
    layers: int = 6
    heads: int = 6
    text: str = "texts/workbook.txt"
    padded: bool = False
    stores_scores: bool = False

    presets = {
        "smoke": {"context": 32, "width": 32, "layers": 2, "heads": 2},
        "quick": {"context": 64, "width": 128, "layers": 4, "heads": 4},
        "paper": {"context": 128, "width": 384, "layers": 6, "heads": 6},
    }

    def dataset(self, recipe: Any) -> Any:
        """Overlapping pieces of the text, or its lines; a character is an index, int64."""
        text = torch.from_numpy(np.fromfile(text_file(self.text), np.uint8)).to(torch.int64)
        pieces = text.unfold(0, self.context + 1, 16)
        if self.padded:
            pieces = padded_lines(text, self.context + 1)
        return TensorDataset(pieces[:, :-1], pieces[:, 1:])

    def model(self) -> nn.Module:
        """Pre-norm blocks between embeddings and a linear head."""
        kind = WrittenOut if self.stores_scores else GPT
        return kind(self.context, self.width, self.layers, self.heads)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross entropy of the next character; 0 is padding."""
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=0)

    def optimizer(self, parameters: Any, **implementation: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3, **implementation)
