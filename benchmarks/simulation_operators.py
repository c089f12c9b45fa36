"""Operators of timm's models under the conditions of its benchmark, for `benchmarks.fit_simulation`.

The conditions of its `benchmark.py` at the time of the figures: SGD with Nesterov momentum, a kernel for each
parameter (foreach was not the default yet), gradients zeroed, no loss scaling, inputs on the device.
"""

import gzip
import pickle
import sys
from pathlib import Path
from typing import Any

import timm
import torch
from msgspec.structs import replace
from timm.layers.config import set_fused_attn
from timm.layers.fast_norm import set_fast_norm
from timm.models import _registry

from perfkit.additions.simulate import fake, recording
from perfkit.additions.simulate.step import OperatorCall, StepEvents, of_operator


def step_of(
    name: str, batch: int, image: int, channels_last: bool, train: bool, cache: Path
) -> StepEvents | None:
    """The operators of one step, from the cache if they are there; None if this timm cannot run the model."""
    layout = "nhwc" if channels_last else "nchw"
    path = cache / f"{'train' if train else 'infer'}-{name}-{batch}-{image}-{layout}.gz"
    if not path.exists():
        try:
            step = _recorded(name, batch, image, channels_last, train)
        except Exception as problem:  # some of hundreds of models fail in their own ways
            print(f"left out: {name}: {recording.reason(problem)}", file=sys.stderr)
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(pickle.dumps(step), 3))
    found: StepEvents = pickle.loads(gzip.decompress(path.read_bytes()))
    return found


def _recorded(name: str, batch: int, image: int, channels_last: bool, train: bool) -> StepEvents:
    set_fused_attn(not train)  # PyTorch 1.12, which trained, had no fused attention
    # In inference, norms ran in 16 bits: in float32, the bytes of group norm would take the RTX 4090, at its
    # full bandwidth, twice as long as the published step took.
    set_fast_norm(not train)
    with fake.uninitialised():
        try:
            model = timm.create_model(name, img_size=image)
        except TypeError:
            model = timm.create_model(name)
    update = {"momentum": 0.9, "nesterov": True, "foreach": False}
    return recorded(model, (batch, 3, image, image), channels_last, update if train else None)


def recorded(
    model: Any, shape: tuple[int, ...], channels_last: bool, update: dict[str, Any] | None, amp: bool = True
) -> StepEvents:
    """A step of a model on images that are on the device.

    Args:
        model: on the CPU.
        shape: of the images.
        channels_last: for model and images.
        update: options of SGD; None for inference.
        amp: under autocast in float16.
    """
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.train(update is not None).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, **update) if update else None
    recorder = recording.Recorder()
    with fake.listening(recorder), torch.set_grad_enabled(update is not None):
        images = torch.empty(shape).to(memory_format=layout)
        targets = torch.empty(shape[0], dtype=torch.long)

        def take_step() -> None:
            recorder.phase = "forward"
            with torch.autocast("cpu", torch.float16, enabled=amp):
                outputs = model(images)
                if not optimizer:
                    return
                outputs = outputs[0] if isinstance(outputs, tuple) else outputs
                loss = torch.nn.functional.cross_entropy(outputs, targets)
            recorder.phase = "backward"
            loss.backward()
            recorder.phase = "optimizer"
            optimizer.step()
            optimizer.zero_grad(set_to_none=optimizer.defaults["foreach"] is not False)

        if optimizer:
            take_step()
        step = recording.recorded(recorder, take_step, model, optimizer)
    return replace(step, conv_precision="ieee", matmul_precision="ieee")


def family(model: str) -> str:
    """The file of timm in which it is defined."""
    name = model.split(".", maxsplit=1)[0]
    for module, former in _registry._module_to_deprecated_models.items():
        if name in former:
            return str(module)
    return _registry._model_to_module.get(name, name.split("_")[0])


def is_the_model_of(step: StepEvents, row: dict[str, str]) -> bool:
    """Whether the model is the one that was measured: names are reused.

    In training, by its parameters; 3% may differ. In inference, by multiply-adds; published ones leave parts
    of attention out.
    """
    operators = [event for event in step.events if isinstance(event, OperatorCall)]
    zeroed = [op for op in operators if op.phase == "optimizer" and op.name == "aten.zero_"]
    if zeroed:
        count = sum(op.inputs[0].numel for op in zeroed)
        return abs(count / (1e6 * float(row["param_count"])) - 1) < 0.03
    macs = sum(work.flops for op in operators for work in of_operator(op, step)) / 2
    macs /= int(row["infer_batch_size"])
    expected = 1e9 * float(row["infer_gmacs"] or 0)
    return not expected or 0.88 < macs / expected < 1.35 or abs(macs - expected) < 2e7
