"""The doctor: what this machine has, what is wrong with it, and the remedy for each."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import psutil

from perfkit.machine import cores, devices, fingerprint
from perfkit.machine.fingerprint import GIB, version
from perfkit.machine.folders import data_folder

Status = Literal["ok", "warning", "problem"]
_JUPYTER = ("jupyterlab", "ipywidgets", "ipykernel")
_MIN_TORCH = (2, 11)
_MIN_FREE = 2 * GIB


@dataclass(frozen=True)
class Check:
    """One thing the doctor looked at."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


def doctor() -> list[Check]:
    """Looks at everything that decides what can be measured here; changes nothing."""
    machine = fingerprint.machine()
    return [
        _python(),
        _torch(),
        _jupyter(),
        _cores(),
        _memory(machine),
        _shared_memory(machine),
        _gpu(machine),
        _bf16(machine),
        _compiler(),
        _data(),
        *_deprecated(),
    ]


def _python() -> Check:
    return Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def _torch() -> Check:
    torch, vision = version("torch"), version("torchvision")
    detail = f"torch {torch or 'missing'}, torchvision {vision or 'missing'}"
    mend = "Install the pair of requirements.txt: pip install -r requirements.txt"
    if not torch or not vision:
        return Check("torch", "problem", detail, mend)
    build = ", ".join(f"{name} {number}" for name, number in fingerprint.torch_build().items())
    detail += f", built for {build or 'the CPU'}"
    if tuple(int(part) for part in torch.split(".")[:2]) < _MIN_TORCH:
        return Check("torch", "problem", f"{detail}; perfkit needs torch 2.11", mend)
    if wanted := _unmet(torch):
        return Check("torch", "problem", f"{detail}; torchvision needs {wanted}", mend)
    return Check("torch", "ok", detail)


def _unmet(torch: str) -> str:
    """What torchvision asks of torch, where the installed one is not that."""
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in metadata.requires("torchvision") or []]
    return next((str(r) for r in wanted if r.name == "torch" and not r.specifier.contains(torch, True)), "")


def _jupyter() -> Check:
    found = {name: version(name) for name in _JUPYTER}
    detail = ", ".join(f"{name} {number or 'missing'}" for name, number in found.items())
    if all(found.values()):
        return Check("Jupyter", "ok", detail)
    return Check("Jupyter", "warning", detail, "For the notebooks: pip install -e '.[notebook]'")


def _cores() -> Check:
    if cores.usable_cores() > 1:
        return Check("cores", "ok", cores.core_report())
    remedy = "Loader workers and training share one core: give the container more (docker run --cpus)"
    return Check("cores", "warning", cores.core_report(), remedy)


def _memory(machine: Mapping[str, Any]) -> Check:
    total, free = machine["memory_bytes"], psutil.virtual_memory().available
    detail = f"{total / GIB:.1f} GiB, {min(free, total) / GIB:.1f} GiB available"
    if min(free, total) < 3 * GIB:
        return Check("memory", "warning", detail, "Three processes train at a time: close other programs")
    return Check("memory", "ok", detail)


def _shared_memory(machine: Mapping[str, Any]) -> Check:
    size = machine["shm_bytes"]
    if size is None:
        return Check("/dev/shm", "ok", "n/a: this system has none")
    if size < GIB:
        remedy = "Loader workers die when it is full: docker run --shm-size=2g (or --ipc=host)"
        return Check("/dev/shm", "warning", f"{size / 1024**2:.0f} MiB", remedy)
    return Check("/dev/shm", "ok", f"{size / GIB:.1f} GiB")


def _gpu(machine: Mapping[str, Any]) -> Check:
    found, gpus = devices.accelerators(), machine["gpus"]
    usable = [facts["name"] for kind in ("cuda", "mps") for facts in found[kind]]
    driver = f", driver {machine['driver']}" if machine["driver"] else ""
    if usable:
        return Check("GPU", "ok", ", ".join(usable) + driver)
    if gpus:
        return Check("GPU", "warning", f"torch cannot use {gpus[0]['name']}{driver}", _why_not_usable(found))
    if any((cores.ROOT / "dev" / node).exists() for node in ("nvidiactl", "nvidia0")):
        remedy = "Run nvidia-smi; in a container start it with --gpus all; after a driver update, reboot"
        return Check("GPU", "warning", "a device node is there, but NVIDIA's driver does not answer", remedy)
    return Check("GPU", "ok", "n/a: none found; stages that need one are shown as n/a")


def _why_not_usable(found: Mapping[str, Any]) -> str:
    if not fingerprint.torch_build():
        return "This torch is built for the CPU: install the build for CUDA (see pytorch.org)"
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mask is not None:
        return f"CUDA_VISIBLE_DEVICES is '{mask}': unset it"
    return f"torch says: {found['error'] or 'nothing'}. Update the driver, or install torch for an older CUDA"


def _bf16(machine: Mapping[str, Any]) -> Check:
    flags = [flag for flag in machine["cpu"]["flags"] if flag in ("amx_bf16", "avx512_bf16", "bf16")]
    if flags:
        return Check("bf16 on the CPU", "ok", f"{', '.join(flags)} ({machine['cpu']['model']})")
    detail = f"no instructions for it ({machine['cpu']['model']}): AMP on the CPU will be slower, not faster"
    return Check("bf16 on the CPU", "ok", detail)


def _compiler() -> Check:
    device = devices.default_device()
    problem, _, remedy = devices.compiler_problem(device).partition(": ")
    if problem:
        return Check("compiler", "warning", f"torch.compile on {device}: {problem}", remedy)
    return Check("compiler", "ok", f"torch.compile has what it needs on {device}")


def _data() -> Check:
    folder = data_folder().absolute()
    there = next(part for part in (folder, *folder.parents) if part.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Check("data folder", "problem", f"cannot write {folder}", "Set PERFKIT_DATA to another folder")
    free = shutil.disk_usage(there).free
    detail = f"{folder}, {free / GIB:.1f} GiB free"
    if free < _MIN_FREE:
        return Check("data folder", "warning", detail, "Free some space, or set PERFKIT_DATA to another disk")
    return Check("data folder", "ok", detail)


def _deprecated() -> list[Check]:
    found = version("pynvml")
    if not found:
        return []
    remedy = "torch warns of it: pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"
    return [Check("pynvml", "warning", f"the deprecated package pynvml {found} is installed", remedy)]
