"""Plans many recipes in one process, as JSON: `python -m tests.support.plans CASES`.

Autograd must not have run in a process before the simulated device is made, and a test run has run it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from perfkit.simulate.step import Step, Tensor


def plan(case: dict[str, Any]) -> Any:
    """A step of the small net, of a module, or of a workload under a recipe; or why there is none."""
    from perfkit import workloads
    from perfkit.recipe import Recipe
    from perfkit.simulate import operators, recording, self_test

    try:
        if "module" in case:
            make, *inputs = case["module"]
            given = [Tensor(tuple(shape), dtype) for shape, dtype in inputs]
            return operators.of_model(_MODULES[make], given, **case.get("options", {}))
        if "small" in case:
            return self_test.step_of(**case["small"])
        workload = workloads.load(case["workload"], case.get("options"))
        return operators.of_training(workload, Recipe(**case["recipe"]))
    except Exception as problem:
        return recording.reason(problem)


def _mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10))


def _attention() -> Any:
    from torch import nn

    return nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.0, batch_first=True)


def _recurrent() -> Any:
    from torch import nn

    return nn.LSTM(8, 8)


def _activations() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(100, 200), nn.SiLU(), nn.Linear(200, 200), nn.Mish(), nn.Linear(200, 10))


_MODULES = {"mlp": _mlp, "attention": _attention, "recurrent": _recurrent, "activations": _activations}


def run(cases: dict[str, dict[str, Any]], python: str = sys.executable) -> dict[str, Step | str]:
    """Plans of all cases, made in a process of their own."""
    import subprocess

    command = [python, "-W", "ignore", "-m", "tests.support.plans", json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=dict[str, Step | str])


if __name__ == "__main__":
    planned = {name: plan(case) for name, case in json.loads(sys.argv[1]).items()}
    print(msgspec.json.encode(planned).decode())
