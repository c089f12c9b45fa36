"""What makes a machine and its software comparable with others."""

import contextlib
import copy
import functools
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from perfkit.machine import cores, gpus
from perfkit.machine.folders import checkout

GIB = 1024**3
_PACKAGES = ("torch", "torchvision", "numpy", "triton", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "bf16", "i8mm", "sve")


def version(package: str) -> str | None:
    """The version of an installed package, without importing it; None where it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def torch_build() -> dict[str, str]:
    """The `cuda` and `hip` versions that torch was built for, read from its version.py as text."""
    spec = importlib.util.find_spec("torch")
    text = ""
    if spec and spec.origin:
        with contextlib.suppress(OSError):
            text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    return dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *'([^']+)'", text, re.MULTILINE))


def facts() -> dict[str, Any]:
    """This machine and its software as plain data, read once per process; equal `id`s are comparable."""
    return copy.deepcopy(_facts())


@functools.cache
def _facts() -> dict[str, Any]:
    driver, cards = gpus.facts()
    versions = {name: number for name in _PACKAGES if (number := version(name))} | torch_build()
    shared = cores.ROOT / "dev/shm"  # loader workers pass batches through it
    hardware = {"cpu": _cpu(), "memory_bytes": cores.memory_bytes(), "gpus": cards, "versions": versions}
    return {
        "id": _comparable(hardware),
        "os": platform.platform(),
        "python": platform.python_version(),
        **hardware,
        "shm_bytes": shutil.disk_usage(shared).total if shared.is_dir() else None,
        "driver": driver,
        "commit": _commit(),
        "containers": _containers(),
    }


def _comparable(facts: Mapping[str, Any]) -> str:
    """Short hash of what decides speed: CPU model, cores, memory, GPUs, torch."""
    cpu, torch = facts["cpu"], facts["versions"].get("torch")
    names = [gpu["name"] for gpu in facts["gpus"]]
    same = [cpu["model"], cpu["cores_usable"], round(facts["memory_bytes"] / GIB), names, torch]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:10]


def _cpu() -> dict[str, Any]:
    text = ""
    with contextlib.suppress(OSError):
        text = (cores.ROOT / "proc/cpuinfo").read_text()
    facts = dict(re.findall(r"^(\w[\w ]*?)\s*:[ \t]*(.*)$", text, re.MULTILINE))
    model = facts.get("model name")
    if not model and sys.platform == "darwin":
        model = _first_line("sysctl", "-n", "machdep.cpu.brand_string")
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    return {
        "model": " ".join((model or platform.processor() or platform.machine()).split()),
        "cores_usable": cores.usable_cores(),
        "cores_visible": os.cpu_count() or 1,
        "flags": [flag for flag in _CPU_FLAGS if flag in flags],
    }


def _first_line(*command: str) -> str | None:
    """The first line that a short command prints; None where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None)


def _commit() -> str | None:
    """The commit of the working tree that perfkit runs from, with `-dirty` where files differ."""
    tree = checkout()
    arguments = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return _first_line("git", "-C", str(tree), *arguments) if tree else None


def _containers() -> list[str]:
    """Signs of a container, a hosted notebook or WSL."""
    files = {".dockerenv": "docker", "run/.containerenv": "podman", "dev/dxg": "wsl"}
    variables = {"KUBERNETES_SERVICE_HOST": "kubernetes", "COLAB_RELEASE_TAG": "colab"}
    signs = [name for file, name in files.items() if (cores.ROOT / file).exists()]
    return signs + [name for variable, name in variables.items() if variable in os.environ]


def describe(machine: Mapping[str, Any]) -> str:
    """A machine's facts in one line: "2 cores Intel Xeon · 24 GiB · no GPU · torch 2.15.0"."""
    cpu, memory = machine.get("cpu", {}), machine.get("memory_bytes")
    count = cpu.get("cores_usable", "?")
    parts = [f"{count} core{'' if count == 1 else 's'} {cpu.get('model', 'unknown CPU')}"]
    parts += [f"{memory / GIB:.0f} GiB"] if memory else []
    parts += [", ".join(_gpu_name(gpu) for gpu in machine.get("gpus", [])) or "no GPU"]
    return " · ".join([*parts, f"torch {machine.get('versions', {}).get('torch', '–')}"])


def _gpu_name(gpu: Mapping[str, Any]) -> str:
    limit = gpu.get("power_limit_w")
    return f"{gpu.get('name') or 'unknown GPU'}{f' ({limit:.0f} W)' if limit else ''}"
