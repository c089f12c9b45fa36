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
from perfkit.machine import cores, fingerprint

_ASK_TORCH = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
mps = ["Apple GPU"] if torch.backends.mps.is_available() else []
print(json.dumps(dict(cuda=[torch.cuda.get_device_name(i) for i in range(count)], mps=mps)))
"""


def _may_have_accelerator() -> bool:
    """Whether asking torch, which takes seconds, can find anything."""
    if sys.platform == "darwin":
        return os.uname().machine == "arm64"
    nodes = any((cores.ROOT / "dev" / node).exists() for node in ("nvidiactl", "nvhost-gpu", "kfd", "dxg"))
    return bool(fingerprint.torch_build()) and (nodes or bool(fingerprint.facts()["gpus"]))


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


_OTHERS = " (or cuda:1, the second GPU; sim:v100, a simulated one; recorded:NAME)"


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
    numbered = [f"cuda:{number}" for number in range(len(accelerators()["cuda"]))]
    available = ", ".join([*numbered, *["mps"] * bool(accelerators()["mps"]), "cpu"])
    raise InvalidValue(f"device '{name}' is not available: {_absence(kind)}", f"Available: {available}")


def _absence(kind: str) -> str:
    count = len(accelerators()[kind])
    if count:
        return f"torch finds {count} {'GPU' if count == 1 else 'GPUs'}, counted from 0"
    mask = os.environ.get("CUDA_VISIBLE_DEVICES") if kind == "cuda" else None
    hidden = "" if mask is None else f"; CUDA_VISIBLE_DEVICES is '{mask}'"
    return f"torch finds none here (`perfkit doctor` says why){hidden}"


def compiler_problem(device: str) -> str:
    """What torch.compile lacks for a device, with the remedy; empty where it lacks nothing."""
    if device.startswith("cuda"):
        if importlib.util.find_spec("triton") is None:
            return "Triton is missing: pip install triton (triton-windows on Windows)"
        return "" if sys.platform == "win32" else _missing_tool("CC", ("gcc", "clang"), "C")
    # What torch/_inductor/config.py looks for: CXX, else one name for each platform.
    names = {"darwin": "clang++", "win32": "cl"}
    return _missing_tool("CXX", (names.get(sys.platform, "g++"),), "C++")


def _missing_tool(variable: str, names: tuple[str, ...], language: str) -> str:
    given = os.environ.get(variable)
    words = [given] if given and sys.platform == "win32" else shlex.split(given or "")
    if words and not shutil.which(words[0]):
        return f"{variable} names '{given}', which does not exist: correct or unset {variable}"
    if not words and not any(map(shutil.which, names)):
        return f"no {language} compiler ({', '.join(names)}): {_install(language)}"
    # The scheme that inductor and Triton use; Debian's default one names another folder.
    scheme = "nt" if sys.platform == "win32" else "posix_prefix"
    header = Path(sysconfig.get_path("include", scheme)) / "Python.h"
    return "" if header.is_file() else f"Python.h is missing in {header.parent}: apt install python3-dev"


def _install(language: str) -> str:
    if language == "C++" and shutil.which("clang++"):
        return "clang++ is installed: export CXX=clang++"
    hints = {"darwin": "xcode-select --install", "win32": "install Visual Studio's C++ build tools"}
    return hints.get(sys.platform, "apt install g++ (Debian, Ubuntu) or dnf install gcc-c++")
