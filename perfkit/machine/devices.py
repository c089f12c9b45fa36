"""Which devices torch can train on. A child process asks torch, so that this one gets no CUDA context."""

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue, one_of
from perfkit.machine import cores, gpus

_ASK_TORCH = """
import gc; gc.disable()  # saves an eighth of the time
import json, torch
there = torch.cuda.is_available()
cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if there else []
bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if there else None
print(json.dumps(dict(imported=True, cuda=cuda, bf16=bf16, mps=torch.backends.mps.is_available())))
"""
_OTHERS = " (or cuda:1, the second GPU; sim:v100, a simulated one; recorded:NAME)"


class Accelerators(msgspec.Struct, frozen=True):
    """What torch finds on this machine."""

    cuda: list[str] = []  # the names of the GPUs
    mps: bool = False
    bf16: bool | None = None  # whether the first GPU supports it
    imported: bool = False
    error: str = ""  # the last line that torch wrote to stderr, or the reason why it could not be asked


@functools.cache
def ask_torch() -> Accelerators:
    """Asks torch in a separate process, which takes seconds."""
    command = [sys.executable, "-c", _ASK_TORCH]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        answer, message = (text.strip().rpartition("\n")[2].strip() for text in (child.stdout, child.stderr))
        return msgspec.structs.replace(msgspec.json.decode(answer, type=Accelerators), error=message)
    except (OSError, subprocess.SubprocessError) as problem:
        return Accelerators(error=str(problem))
    except msgspec.DecodeError:
        return Accelerators(error=message or f"torch's process ended with {child.returncode}")


def accelerators() -> Accelerators:
    """What torch finds. It is not asked if this machine cannot have an accelerator."""
    return ask_torch() if _may_have_accelerator() else Accelerators()


def _may_have_accelerator() -> bool:
    if sys.platform == "darwin":
        return os.uname().machine == "arm64"
    return bool(machine.torch_build()) and (has_node(*gpus.NODES) or bool(machine.facts()["gpus"]))


def has_node(*names: str) -> bool:
    """Whether this machine has a device node of one of these names."""
    return any((cores.ROOT / "dev" / name).exists() for name in names)


def check_device(name: str | None) -> str:
    """`cpu`, `cuda`, `cuda:1` or `mps`, if it exists here; for None `cuda`, else `mps`, else `cpu`."""
    if name is None:
        if accelerators().cuda:
            return "cuda"
        return "mps" if accelerators().mps else "cpu"
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        raise one_of(name, ["cuda", "mps", "cpu"], "device", see=_OTHERS)
    present = accelerators() if name != "cpu" else Accelerators()
    available = [f"cuda:{number}" for number in range(len(present.cuda))]
    available += ["mps", "cpu"] if present.mps else ["cpu"]
    if name in available or (name == "cuda" and present.cuda):
        return name
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = "" if mask is None else f" (CUDA_VISIBLE_DEVICES is '{mask}')"
    remedy = f"Available: {', '.join(available)}. `perfkit doctor` says what is wrong with a GPU"
    raise InvalidValue(f"torch finds no device '{name}' here{why}", remedy)


def compiler_problem(device: str) -> str:
    """What torch.compile is missing for a device, and the remedy; empty if nothing is missing."""
    variable = "CXX"
    names = ["clang++" if sys.platform == "darwin" else "g++"]  # the name that inductor looks for
    if device.startswith("cuda"):
        if importlib.util.find_spec("triton") is None:
            return "Triton is missing: pip install triton"
        variable = "CC"
        names = ["gcc", "clang"]
    try:
        if command := shlex.split(os.environ.get(variable, "")):
            names = [command[0]]
    except ValueError:  # such as a quote without its end: inductor finds no compiler then, either
        return f"no compiler ({variable} cannot be read as a command): correct it, or unset it"
    if not any(map(shutil.which, names)):
        return f"no compiler ({' or '.join(names)}): install it, or set {variable} to another one"
    # Inductor and Triton use this scheme; Debian's default scheme has a different folder.
    header = Path(sysconfig.get_path("include", "posix_prefix")) / "Python.h"
    return "" if header.is_file() else f"Python.h is missing in {header.parent}: apt install python3-dev"
