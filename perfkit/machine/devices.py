"""Which devices torch can train on. A child process asks torch: this process never gets a CUDA context."""

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

from perfkit.errors import InvalidValue, one_of
from perfkit.machine import computer, cores

_ASK_TORCH = """
import json, torch
there = torch.cuda.is_available()
cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if there else []
bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if there else None
print(json.dumps(dict(imported=True, cuda=cuda, bf16=bf16, mps=torch.backends.mps.is_available())))
"""
_OTHERS = " (or cuda:1, the second GPU; sim:v100, a simulated one; recorded:NAME)"


class Found(msgspec.Struct, frozen=True):
    """What torch finds on this machine."""

    cuda: list[str] = []
    """The names of the GPUs."""
    mps: bool = False
    bf16: bool | None = None
    """Whether the first GPU computes in bfloat16."""
    imported: bool = False
    """Whether torch can be imported, where it was asked."""
    error: str = ""
    """The last line that torch wrote to stderr, or why it could not be asked."""


@functools.cache
def ask_torch() -> Found:
    """Asks torch in a process of its own, which takes seconds."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=180, check=False
        )
    except (OSError, subprocess.SubprocessError) as problem:
        return Found(error=str(problem))
    answer, message = (text.strip().rpartition("\n")[2].strip() for text in (done.stdout, done.stderr))
    try:
        return msgspec.structs.replace(msgspec.json.decode(answer, type=Found), error=message)
    except msgspec.DecodeError:
        return Found(error=message or f"torch's process ended with {done.returncode}")


def accelerators() -> Found:
    """What torch finds; it is not asked where nothing can be found."""
    return ask_torch() if _may_have_accelerator() else Found()


def _may_have_accelerator() -> bool:
    if sys.platform == "darwin":
        return os.uname().machine == "arm64"
    nodes = any((cores.ROOT / "dev" / node).exists() for node in ("nvidiactl", "nvhost-gpu", "kfd", "dxg"))
    return bool(computer.torch_build()) and (nodes or bool(computer.facts()["gpus"]))


def check_device(name: str | None) -> str:
    """The name of a device that exists here; for None `cuda`, else `mps`, else `cpu`.

    Args:
        name: `cpu`, `cuda`, `cuda:1` or `mps`; `sim:v100` is passed on, as a simulated GPU needs none.

    Raises:
        InvalidValue: no such device, here or anywhere.
    """
    if name is None:
        return "cuda" if accelerators().cuda else "mps" if accelerators().mps else "cpu"
    if re.fullmatch(r"sim:[a-z0-9-]+", name):
        return name
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        raise one_of(name, ["cuda", "mps", "cpu"], "device", see=_OTHERS)
    found = accelerators() if name != "cpu" else Found()
    count = len(found.cuda)
    available = [*(f"cuda:{number}" for number in range(count)), *["mps"] * found.mps, "cpu"]
    if name in available or (name == "cuda" and count):
        return name
    why = "torch finds none here (`perfkit doctor` says why)"
    if name != "mps" and count:
        why = f"torch finds {count} GPU{'s' * (count > 1)}, counted from 0"
    elif name != "mps" and "CUDA_VISIBLE_DEVICES" in os.environ:
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
