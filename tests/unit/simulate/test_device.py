"""The self test of the simulated device, on this torch and, where there is one, on another."""

from __future__ import annotations

import os
import subprocess
import sys

from perfkit.simulate.step import Allocate, Step
from tests.support import plans

CHECK = "from perfkit.simulate import self_test; self_test.check(compiled=True); print('passed')"
BREAK = """
import torch.optim.optimizer as optimizers
from perfkit.simulate import device, self_test
device.register()
optimizers._foreach_supported_types.clear()  # as if a new torch had renamed it
self_test.check()
"""


def python(script: str, interpreter: str = sys.executable) -> subprocess.CompletedProcess[str]:
    command = [interpreter, "-W", "ignore", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


if other := os.environ.get("PERFKIT_OTHER_TORCH"):  # an interpreter with another torch, such as 2.11

    def test_another_torch_passes_the_self_test() -> None:
        done = python(CHECK, other)
        assert done.stdout.strip() == "passed", done.stderr[-1000:]


def test_a_torch_that_works_otherwise_is_refused_in_one_sentence() -> None:
    last = python(BREAK).stderr.strip().splitlines()[-1]
    assert "simulated GPUs do not work with torch" in last
    assert "operators of a training step: aten._foreach_add_ 0 times instead of 2" in last
    assert "Tested are torch 2.11 and 2.15" in last


def test_torch_compile_fuses_and_keeps_less_memory() -> None:
    small = {"eager": {"small": {}}, "compiled": {"small": {"compiled": True}}}
    eager, compiled = plans.run(small).values()
    assert isinstance(eager, Step)
    assert isinstance(compiled, Step)
    assert (eager.compiled, compiled.compiled) == (False, True)
    names = [operator.name for operator in compiled.operators]
    assert "fused" in names
    assert not {"aten.native_batch_norm", "aten.relu_", "aten.threshold_backward"} & {*names}
    assert names.count("aten.convolution") == names.count("aten.convolution_backward") == 2
    fused = next(op for op in compiled.operators if op.attributes.get("reduction"))
    # Statistics of 2 × 8 × 8 × 8 values in float32: they are read, and a few values for each channel written.
    assert fused.inputs[0].nbytes == 2 * 8 * 8 * 8 * 4
    assert "aten.var_mean" in fused.attributes["nodes"]
    assert fused.module == "layers.1"
    for step in (eager, compiled):
        blocks = [event for event in step.events if isinstance(event, Allocate)]
        assert sum(block.nbytes for block in blocks) == 0, "a steady step gives back what it takes"
