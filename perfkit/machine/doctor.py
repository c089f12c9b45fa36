"""The check-up of a machine: what it has, what is wrong with it, and how to fix it."""

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

_JUPYTER = ("jupyterlab", "ipywidgets", "ipykernel")
_MIN_TORCH = (2, 11)
_MIN_FREE = 2 * GIB
_ONE_CORE = "Loader workers and training share one core: give the container more (docker run --cpus)"
_SMALL_SHM = "Loader workers crash when it is full: docker run --shm-size=2g (or --ipc=host)"


@dataclass(frozen=True)
class Check:
    """One aspect of the machine; with a remedy where something is wrong."""

    name: str
    detail: str
    remedy: str = ""
    blocking: bool = False
    """Whether nothing can be measured before it is fixed."""

    @property
    def status(self) -> Literal["ok", "warning", "problem"]:
        """How bad it is."""
        return "ok" if not self.remedy else "problem" if self.blocking else "warning"


def checkup() -> list[Check]:
    """Checks everything that decides what can be measured here; changes nothing."""
    machine = fingerprint.facts()
    total, shared, model = machine["memory_bytes"], machine["shm_bytes"], machine["cpu"]["model"]
    available = min(psutil.virtual_memory().available, total)
    bf16 = [flag for flag in machine["cpu"]["flags"] if flag in ("amx_bf16", "avx512_bf16", "bf16")]
    jupyter = {name: version(name) for name in _JUPYTER}
    device = devices.default_device()
    problem, _, fix = devices.compiler_problem(device).partition(": ")
    checks = [
        Check("Python", f"{platform.python_version()} at {sys.executable}"),
        _torch(),
        Check("Jupyter", ", ".join(f"{name} {number or 'missing'}" for name, number in jupyter.items()),
              "" if all(jupyter.values()) else "Install it: pip install -e '.[notebook]'"),
        Check("cores", cores.core_report(), _ONE_CORE if cores.usable_cores() == 1 else ""),
        Check("memory", f"{total / GIB:.1f} GiB, {available / GIB:.1f} GiB available",
              "Up to three processes train at once: close other programs" if available < 3 * GIB else ""),
        Check("/dev/shm", "n/a: this system has none") if shared is None
        else Check("/dev/shm", f"{shared / GIB:.2f} GiB", _SMALL_SHM if shared < GIB else ""),
        _gpu(machine),
        Check("bf16 on the CPU", f"{', '.join(bf16)} ({model})" if bf16
              else f"no instructions for it ({model}): AMP on the CPU will be slower, not faster"),
        Check("compiler", f"torch.compile on {device}: {problem or 'has what it needs'}", fix),
        _data(),
    ]  # fmt: skip
    if deprecated := version("pynvml"):
        remedy = "torch warns about it: pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"
        checks.append(Check("pynvml", f"the deprecated package pynvml {deprecated} is installed", remedy))
    return checks


def _torch() -> Check:
    torch, vision = version("torch"), version("torchvision")
    detail = f"torch {torch or 'missing'}, torchvision {vision or 'missing'}"
    remedy = "Install the versions in requirements.txt: pip install -r requirements.txt"
    if not torch or not vision:
        return Check("torch", detail, remedy, blocking=True)
    build = ", ".join(f"{name} {number}" for name, number in fingerprint.torch_build().items())
    detail += f", built for {build or 'the CPU'}"
    if tuple(int(part) for part in torch.split(".")[:2]) < _MIN_TORCH:
        return Check("torch", f"{detail}; perfkit needs torch 2.11", remedy, blocking=True)
    if requirement := _unmet(torch):
        return Check("torch", f"{detail}; torchvision needs {requirement}", remedy, blocking=True)
    return Check("torch", detail)


def _unmet(torch: str) -> str:
    """Torchvision's requirement of torch, where the installed version does not meet it."""
    from packaging.requirements import Requirement

    requirements = [Requirement(text) for text in metadata.requires("torchvision") or []]
    unmet = (r for r in requirements if r.name == "torch" and not r.specifier.contains(torch, True))
    return str(next(unmet, ""))


def _gpu(machine: Mapping[str, Any]) -> Check:
    usable = [*devices.accelerators()["cuda"], *devices.accelerators()["mps"]]
    driver = f", driver {machine['driver']}" if machine["driver"] else ""
    if usable:
        return Check("GPU", ", ".join(usable) + driver)
    if machine["gpus"]:
        return Check("GPU", f"torch cannot use {machine['gpus'][0]['name']}{driver}", _fix_for_unusable_gpu())
    if any((cores.ROOT / "dev" / node).exists() for node in ("nvidiactl", "nvidia0")):
        remedy = "Run nvidia-smi; in a container start it with --gpus all; after a driver update, reboot"
        return Check("GPU", "there is a device node, but the NVIDIA driver does not respond", remedy)
    return Check("GPU", "n/a: none found; stages that need one are shown as n/a")


def _fix_for_unusable_gpu() -> str:
    if not fingerprint.torch_build():
        return "This torch is built for the CPU: install the build for CUDA (see pytorch.org)"
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mask is not None:
        return f"CUDA_VISIBLE_DEVICES is '{mask}': unset it"
    message = devices.accelerators()["error"] or "torch gives no reason"
    return f"{message}. Update the driver, or install a torch built for an older CUDA"


def _data() -> Check:
    folder = data_folder().absolute()
    existing = next(part for part in (folder, *folder.parents) if part.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = "Set PERFKIT_DATA to another folder"
        return Check("data folder", f"cannot write to {folder}", remedy, blocking=True)
    free = shutil.disk_usage(existing).free
    remedy = "Free some space, or set PERFKIT_DATA to another disk" if free < _MIN_FREE else ""
    return Check("data folder", f"{folder}, {free / GIB:.1f} GiB free", remedy)
