"""What this computer is, and where perfkit keeps its files on it. Never imports torch."""

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import platformdirs

from perfkit.machine import cores, gpus

GIB = 1024**3
_PACKAGES = ("torch", "torchvision", "numpy", "triton", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")
_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "bf16", "i8mm", "sve")


def version(package: str) -> str | None:
    """The version of an installed package, without importing it; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def torch_build() -> dict[str, str]:
    """The `cuda` and `hip` versions that torch was built for, read from its version.py as text."""
    spec = importlib.util.find_spec("torch")
    text = _text(Path(spec.origin).with_name("version.py")) if spec and spec.origin else ""
    return dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *'([^']+)'", text, re.MULTILINE))


@functools.cache
def facts() -> dict[str, Any]:
    """This machine and its software as plain data, read once. Runs with equal `id`s are comparable."""
    driver, cards = gpus.facts()
    packages = {name: version(name) for name in _PACKAGES}
    versions = {name: number for name, number in packages.items() if number} | torch_build()
    shared = cores.ROOT / "dev/shm"  # loader workers pass batches through it
    tree = checkout()
    hardware = {"cpu": _cpu(), "memory_bytes": cores.memory_bytes(), "gpus": cards, "versions": versions}
    nodes = [name for name in gpus.NODES if (cores.ROOT / "dev" / name).exists()]
    if nodes and not cards:
        hardware["nodes"] = nodes
    git_describe = ("git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return {
        "id": comparable(hardware),
        "os": platform.platform(),
        "python": platform.python_version(),
        **hardware,
        "shm_bytes": shutil.disk_usage(shared).total if shared.is_dir() else None,
        "driver": driver,
        "commit": _first_line(*git_describe) if tree else None,
    }


def import_paths() -> list[str]:
    """The module search path of measuring processes. It has the current folder, too, as with `python -m`."""
    return list(sys.path) if sys.flags.safe_path else [os.getcwd(), *sys.path]


def module_file(module: str, of_package: str = "__init__.py") -> Path | None:
    """The file of a module, or this one of a package, found as an import would find it; None without one."""
    path = Path(*module.split("."))
    for folder in import_paths():
        for file in (Path(folder, path, of_package), Path(folder, f"{path}.py")):
            if file.is_file():
                return file
    return None


def comparable(facts: Mapping[str, Any]) -> str:
    """A short hash of what determines speed: CPU model, cores, memory, GPUs, torch."""
    cpu = facts["cpu"]
    # NVML does not see a Jetson's GPU: such a machine must not look like one without a GPU.
    names = [gpu["name"] for gpu in facts["gpus"]] or facts.get("nodes", [])
    parts = [cpu["model"], cpu["cores_usable"], round(facts["memory_bytes"] / GIB), names]
    parts.append(facts["versions"].get("torch"))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:10]


def _cpu() -> dict[str, Any]:
    info = dict(re.findall(r"^(\w[\w ]*?)\s*:[ \t]*(.*)$", _text(cores.ROOT / "proc/cpuinfo"), re.MULTILINE))
    model = info.get("model name")
    if not model and sys.platform == "darwin":
        model = _first_line("sysctl", "-n", "machdep.cpu.brand_string")
    flags = (info.get("flags") or info.get("Features") or "").split()
    return {
        "model": " ".join((model or platform.processor() or platform.machine()).split()),
        "cores_usable": cores.usable_cores(),
        "cores_visible": os.cpu_count() or 1,
        "flags": [flag for flag in _CPU_FLAGS if flag in flags],
    }


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8")
    return ""


def _first_line(*command: str) -> str | None:
    """The first line that a short command prints; None if it fails."""
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(completed.stdout.splitlines()), None)


def describe(machine: Mapping[str, Any]) -> str:
    """A machine's facts in one line: "2 cores Intel Xeon · 24 GiB · no GPU · torch 2.15.0"."""
    cpu = machine.get("cpu", {})
    count = cpu.get("cores_usable", "?")
    parts = [f"{count} core{'' if count == 1 else 's'} {cpu.get('model', 'unknown CPU')}"]
    if memory := machine.get("memory_bytes"):
        parts.append(f"{memory / GIB:.0f} GiB")
    names = []
    for gpu in machine.get("gpus", []):
        limit = f" ({gpu['power_limit_w']:.0f} W)" if gpu.get("power_limit_w") else ""
        names.append((gpu.get("name") or "unknown GPU") + limit)
    parts.append(", ".join(names) or "no GPU")
    parts.append(f"torch {machine.get('versions', {}).get('torch', '–')}")
    return " · ".join(parts)


def checkout() -> Path | None:
    """The working tree that perfkit runs from; None if it was installed without one."""
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "pyproject.toml").is_file() else None


def shipped(name: str) -> Path:
    """A file or folder that comes with perfkit, such as `recordings`, in a checkout and in a wheel."""
    tree = checkout()
    return (tree / "data" if tree else Path(__file__).parents[1] / "shipped") / name


def data_folder() -> Path:
    """The folder for all data: PERFKIT_DATA, else the checkout's `data/`, else the user's own; absolute.

    Its folder `cache` holds data sets and compiled code, `runs` the results. This call does not create it.
    """
    if named := os.environ.get("PERFKIT_DATA"):
        return Path(named).expanduser().absolute()
    tree = checkout()
    return tree / "data" if tree else platformdirs.user_data_path("perfkit", appauthor=False)


def write_atomically(path: Path, content: bytes) -> None:
    """Writes the complete file or nothing: a reader never sees half of it. The folder must exist."""
    if path.exists() and not path.is_file():  # such as /dev/null, which must not be replaced
        path.write_bytes(content)
        return
    path = path.resolve()  # replace the file, not a link to it
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(content)
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
