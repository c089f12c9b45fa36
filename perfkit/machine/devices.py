"""Which devices torch can train on, asked in a child: this process never gets a CUDA context."""

from __future__ import annotations

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit.errors import InvalidValue, one_of
from perfkit.machine import cores, fingerprint

_ASK_TORCH = """
import json, torch
def gpu(index):
    p = torch.cuda.get_device_properties(index)
    pci = getattr(p, "pci_bus_id", None)
    if pci is not None:
        pci = f"{p.pci_domain_id:08X}:{pci:02X}:{p.pci_device_id:02X}.0"
    return dict(name=p.name, uuid=f"GPU-{p.uuid}" if hasattr(p, "uuid") else None, pci=pci,
                bf16=bool(torch.version.hip) or p.major >= 8, total_memory_bytes=p.total_memory)
def apple():
    try:
        torch.zeros(1, dtype=torch.bfloat16, device="mps")
        return True
    except (RuntimeError, TypeError):
        return False
cuda = [gpu(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
mps = torch.backends.mps.is_available()
print(json.dumps(dict(cuda=cuda, mps=[dict(name="Apple GPU", bf16=apple())] if mps else [])))
"""


@dataclass(frozen=True)
class DeviceFacts:
    """What a device is."""

    type: str
    """`cpu`, `cuda` or `mps`."""
    name: str
    uuid: str | None
    bf16: bool
    """Whether it computes in bfloat16; a CPU without instructions for it does, but slowly."""
    total_memory_bytes: int | None
    pci: str | None = None


def _may_have_accelerator() -> bool:
    """Whether it is worth the seconds of asking torch."""
    if sys.platform == "darwin":
        return os.uname().machine == "arm64"
    nodes = any((cores.ROOT / "dev" / node).exists() for node in ("nvidiactl", "nvhost-gpu", "kfd", "dxg"))
    return bool(fingerprint.torch_build()) and (nodes or bool(fingerprint.machine()["gpus"]))


@functools.cache
def accelerators() -> dict[str, Any]:
    """What torch finds: `cuda` and `mps`, each a list of facts, and `error` where asking it failed."""
    nothing: dict[str, Any] = {"cuda": [], "mps": [], "error": ""}
    if not _may_have_accelerator():
        return nothing
    try:
        command = [sys.executable, "-c", _ASK_TORCH]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except (OSError, subprocess.SubprocessError) as problem:
        return nothing | {"error": str(problem)}
    said = (done.stderr.strip().splitlines() or [""])[-1].strip()
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return nothing | answer | {"error": said}
    except (ValueError, IndexError):
        return nothing | {"error": said or f"torch's process ended with {done.returncode}"}


def default_device() -> str:
    """`cuda`, else `mps`, else `cpu`."""
    found = accelerators()
    return next((name for name in ("cuda", "mps") if found[name]), "cpu")


def check_device(name: str | None) -> str:
    """A device's name, known to be there; the best one for None.

    Args:
        name: `cpu`, `cuda`, `cuda:1` or `mps`.

    Raises:
        InvalidValue: no such device, here or anywhere.
    """
    if name is None:
        return default_device()
    match = re.fullmatch(r"(cpu|cuda|mps)(?:(?<=cuda):(\d+))?", name)
    if not match:
        raise one_of(name, ["cuda", "mps", "cpu"], "device", see=" (or cuda:1, the second GPU)")
    kind, index = match[1], int(match[2] or 0)
    if kind == "cpu" or index < len(accelerators()[kind]):
        return name
    raise InvalidValue(f"device '{name}' is not there: {_absence(kind)}", f"Available: {_available()}")


def _available() -> str:
    found = accelerators()
    names = [f"cuda:{index}" for index in range(len(found["cuda"]))] + ["mps"] * bool(found["mps"])
    return ", ".join([*names, "cpu"])


def _absence(kind: str) -> str:
    count = len(accelerators()[kind])
    if count:
        return f"torch finds {count} {'GPU' if count == 1 else 'GPUs'}, counted from 0"
    return f"torch finds none here (`perfkit doctor` says why){_hidden() if kind == 'cuda' else ''}"


def _hidden() -> str:
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if mask is None else f"; CUDA_VISIBLE_DEVICES is '{mask}'"


def device_facts(device: str) -> DeviceFacts:
    """What a device is.

    Raises:
        InvalidValue: no such device.
    """
    kind, _, index = check_device(device).partition(":")
    if kind == "cpu":
        model = fingerprint.machine()["cpu"]["model"]
        return DeviceFacts("cpu", model, None, True, cores.memory_bytes())
    found = {"uuid": None, "total_memory_bytes": None} | accelerators()[kind][int(index or 0)]
    return DeviceFacts(kind, **found)


def has_compiler(device: str) -> bool:
    """Whether torch.compile finds what it needs for a device."""
    return not compiler_problem(device)


def compiler_problem(device: str) -> str:
    """What torch.compile lacks for a device, with the remedy; empty where it lacks nothing."""
    if device.startswith("cuda"):
        if importlib.util.find_spec("triton") is None:
            return "Triton is missing: pip install triton (triton-windows on Windows)"
        return "" if sys.platform == "win32" else _compiler_lack("CC", ("gcc", "clang"), "C")
    # What torch/_inductor/config.py looks for: CXX, else one name for each platform.
    names = {"darwin": "clang++", "win32": "cl"}
    return _compiler_lack("CXX", (names.get(sys.platform, "g++"),), "C++")


def _compiler_lack(variable: str, names: tuple[str, ...], language: str) -> str:
    given = os.environ.get(variable)
    words = [given] if given and sys.platform == "win32" else shlex.split(given or "")
    if words and not shutil.which(words[0]):
        return f"{variable} names '{given}', which is not there: correct or unset {variable}"
    if not words and not any(shutil.which(name) for name in names):
        return f"no {language} compiler ({', '.join(names)}): {_install(language)}"
    # The scheme that inductor and Triton use; Debian's default one names another folder.
    scheme = "nt" if sys.platform == "win32" else "posix_prefix"
    header = Path(sysconfig.get_path("include", scheme)) / "Python.h"
    return "" if header.is_file() else f"Python.h is missing in {header.parent}: apt install python3-dev"


def _install(language: str) -> str:
    if language == "C++" and shutil.which("clang++"):
        return "clang++ is there: export CXX=clang++"
    hints = {"darwin": "xcode-select --install", "win32": "install Visual Studio's C++ build tools"}
    return hints.get(sys.platform, "apt install g++ (Debian, Ubuntu) or dnf install gcc-c++")
