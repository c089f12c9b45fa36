"""Which devices torch can train on. A child process asks torch: this process never gets a CUDA context."""

import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from perfkit.errors import InvalidValue, one_of
from perfkit.machine import computer, cores

_ASK_TORCH = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
mps = ["Apple GPU"] if torch.backends.mps.is_available() else []
print(json.dumps(dict(cuda=[torch.cuda.get_device_name(i) for i in range(count)], mps=mps)))
"""
_OTHERS = " (or cuda:1, the second GPU; sim:v100, a simulated one; recorded:NAME)"


def _may_have_accelerator() -> bool:
    """Whether asking torch, which takes seconds, can find anything."""
    if sys.platform == "darwin":
        return os.uname().machine == "arm64"
    nodes = any((cores.ROOT / "dev" / node).exists() for node in ("nvidiactl", "nvhost-gpu", "kfd", "dxg"))
    return bool(computer.torch_build()) and (nodes or bool(computer.facts()["gpus"]))


@functools.cache
def accelerators() -> dict[str, Any]:
    """What torch finds: `cuda` and `mps`, each a list of names, and `error` where asking it failed."""
    nothing: dict[str, Any] = {"cuda": [], "mps": [], "error": ""}
    if not _may_have_accelerator():
        return nothing
    try:
        command = [sys.executable, "-c", _ASK_TORCH]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except (OSError, subprocess.SubprocessError) as problem:
        return nothing | {"error": str(problem)}
    message = (done.stderr.strip().splitlines() or [""])[-1].strip()
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return nothing | answer | {"error": message}
    except (ValueError, IndexError):
        return nothing | {"error": message or f"torch's process ended with {done.returncode}"}


def default_device() -> str:
    """`cuda`, else `mps`, else `cpu`."""
    return next((name for name in ("cuda", "mps") if accelerators()[name]), "cpu")


def check_device(name: str | None) -> str:
    """The name of a device that exists here; the best one for None.

    Args:
        name: `cpu`, `cuda`, `cuda:1` or `mps`; `sim:v100` is passed on, as a simulated GPU needs none.

    Raises:
        InvalidValue: no such device, here or anywhere.
    """
    if name is None:
        return default_device()
    if re.fullmatch(r"sim:[a-z0-9-]+", name):
        return name
    match = re.fullmatch(r"(cpu|cuda|mps)(?:(?<=cuda):(\d+))?", name)
    if not match:
        raise one_of(name, ["cuda", "mps", "cpu"], "device", see=_OTHERS)
    kind, index = match[1], int(match[2] or 0)
    if kind == "cpu" or index < len(accelerators()[kind]):
        return name
    count, mps = len(accelerators()["cuda"]), bool(accelerators()["mps"])
    available = [*(f"cuda:{number}" for number in range(count)), *["mps"] * mps, "cpu"]
    why = "torch finds none here (`perfkit doctor` says why)"
    if kind == "cuda" and count:
        why = f"torch finds {count} GPU{'s' * (count > 1)}, counted from 0"
    elif kind == "cuda" and "CUDA_VISIBLE_DEVICES" in os.environ:
        why += f"; CUDA_VISIBLE_DEVICES is '{os.environ['CUDA_VISIBLE_DEVICES']}'"
    raise InvalidValue(f"device '{name}' is not available: {why}", f"Available: {', '.join(available)}")


def compiler_problem(device: str) -> str:
    """What torch.compile lacks for a device, with the remedy; empty where it lacks nothing."""
    if device.startswith("cuda"):
        if importlib.util.find_spec("triton") is None:
            return "Triton is missing: pip install triton"
        variable, names, language = "CC", ["gcc", "clang"], "C"
    else:  # what torch/_inductor/config.py looks for
        variable, names, language = "CXX", ["clang++" if sys.platform == "darwin" else "g++"], "C++"
    words = shlex.split(os.environ.get(variable, ""))
    if words and not shutil.which(words[0]):
        return f"{variable} names '{words[0]}', which does not exist: correct or unset {variable}"
    if not words and not any(map(shutil.which, names)):
        install = "apt install g++ (Debian, Ubuntu) or dnf install gcc-c++"
        if sys.platform == "darwin":
            install = "xcode-select --install"
        elif language == "C++" and shutil.which("clang++"):
            install = "clang++ is installed: export CXX=clang++"
        return f"no {language} compiler ({', '.join(names)}): {install}"
    # The scheme that inductor and Triton use; Debian's default one names another folder.
    header = Path(sysconfig.get_path("include", "posix_prefix")) / "Python.h"
    return "" if header.is_file() else f"Python.h is missing in {header.parent}: apt install python3-dev"
