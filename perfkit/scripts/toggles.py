"""Switches that are set from outside for the whole process, and those that cannot be set from outside.

Loader arguments are set in `loaders`, what acts on the model in `models`, on the optimizer in `optimizers`;
`perfkit.worker.checks` reads all of them.
"""

from collections.abc import Callable
from typing import Any

import torch

from perfkit.scripts.loaders import Loaders
from perfkit.scripts.messages import EDITS
from perfkit.scripts.models import Models
from perfkit.scripts.optimizers import Optimizers
from perfkit.scripts.script import Script

_ON_CUDA = {
    "pin_memory": "pinned memory is for copies to a GPU",
    "non_blocking": "copies that do not wait are copies to a GPU",
    "fp32_precision": "TF32 is a number format of CUDA devices",
    "cudnn_benchmark": "cuDNN runs on CUDA devices",
}


def apply_global(toggles: dict[str, Any]) -> None:
    """Settings of the process; called again before the first step, as the script may have set them."""
    if toggles.get("cpu_threads"):
        torch.set_num_threads(toggles["cpu_threads"])
    if toggles.get("fp32_precision", "default") != "default":
        for part in (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
            part.fp32_precision = toggles["fp32_precision"]
    if "cudnn_benchmark" in toggles:
        torch.backends.cudnn.benchmark = toggles["cudnn_benchmark"]


def patch_copies(script: Script, loaders: Loaders) -> None:
    """Sees where batches are copied; with `non_blocking` set, those from pinned memory do not wait."""
    tensor: Any = torch.Tensor

    def patched(name: str, plain: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        def copy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if loaders.is_batch(self):
                loaders.copies.append(kwargs)
                script.sites.note("copy")
            if script.toggles.get("non_blocking") and self.device.type == "cpu" and self.is_pinned():
                kwargs = {"non_blocking": True, **kwargs}
            return plain(self, *args, **kwargs)

        return copy

    for name in ("to", "cuda"):
        setattr(tensor, name, patched(name, getattr(tensor, name)))


def why_not(script: Script, loaders: Loaders, models: Models, optimizers: Optimizers) -> dict[str, str]:
    """Switches that cannot be set from outside in this script, with the reason."""
    reasons = {name: f"needs the script's own code: {edit}" for name, edit in EDITS.items()}
    reasons |= loaders.why_not()
    if models.device().type != "cuda":
        reasons |= {name: f"{reason}; this script trains on a CPU" for name, reason in _ON_CUDA.items()}
    if not any(p.dim() == 4 for p in models.parameters()):
        reasons["channels_last"] = "the model has no 4-dimensional weights"
    if models.is_compiled:
        reasons["compile"] = "the script compiles the model already"
    return reasons | optimizers.why_not() | script.refused
