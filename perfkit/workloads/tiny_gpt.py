"""A small transformer that learns to continue a text, character by character: small products, no images.

The text is prose about making training faster, taken from this workbook. Any other file of text will do.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
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


@dataclass
class TinyGPT:
    """A decoder-only transformer on a text of your choice, trained with AdamW.

    Args:
        context: characters that the model sees.
        width: of the hidden state.
        layers: blocks.
        heads: of the attention in a block; they share the width.
        text: a file, or its path below `data/`.
    """

    context: int = 128
    width: int = 384
    layers: int = 6
    heads: int = 6
    text: str = "texts/workbook.txt"

    presets = {
        "smoke": {"context": 32, "width": 32, "layers": 2, "heads": 2},
        "quick": {"context": 64, "width": 128, "layers": 4, "heads": 4},
        "paper": {"context": 128, "width": 384, "layers": 6, "heads": 6},
    }

    def dataset(self, recipe: Any) -> Any:
        """Overlapping pieces of the text; a character is an index, int64."""
        text = torch.from_numpy(np.fromfile(text_file(self.text), np.uint8)).to(torch.int64)
        pieces = text.unfold(0, self.context + 1, 16)
        return TensorDataset(pieces[:, :-1], pieces[:, 1:])

    def model(self) -> nn.Module:
        """Pre-norm blocks between embeddings and a linear head."""
        return GPT(self.context, self.width, self.layers, self.heads)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross entropy of the next character."""
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def optimizer(self, parameters: Any, **implementation: Any) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(parameters, lr=1e-3, **implementation)
