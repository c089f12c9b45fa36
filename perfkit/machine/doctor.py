"""The check-up of a machine: what it has, what is wrong with it, and how to fix it."""

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
_NO_JUPYTER = "Install it: pip install -e '.[notebook]'"
_LITTLE_MEMORY = "Up to three processes train at once: close other programs"
_DEPRECATED = "torch warns about it: pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"
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
    return [
        Check("Python", f"{platform.python_version()} at {sys.executable}"),
        _torch(),
        _jupyter(),
        Check("cores", cores.core_report(), _ONE_CORE if cores.usable_cores() == 1 else ""),
        _memory(machine["memory_bytes"]),
        _shared_memory(machine["shm_bytes"]),
        _gpu(machine),
        _bf16(machine["cpu"]),
        _compiler(devices.default_device()),
        _data(),
        *_pynvml(),
    ]


def _jupyter() -> Check:
    versions = {name: version(name) for name in _JUPYTER}
    detail = ", ".join(f"{name} {number or 'missing'}" for name, number in versions.items())
    return Check("Jupyter", detail, "" if all(versions.values()) else _NO_JUPYTER)


def _memory(total: int) -> Check:
    available = min(psutil.virtual_memory().available, total)
    detail = f"{total / GIB:.1f} GiB, {available / GIB:.1f} GiB available"
    return Check("memory", detail, _LITTLE_MEMORY if available < 3 * GIB else "")


def _shared_memory(size: int | None) -> Check:
    if size is None:
        return Check("/dev/shm", "n/a: this system has none")
    return Check("/dev/shm", f"{size / GIB:.2f} GiB", _SMALL_SHM if size < GIB else "")


def _bf16(cpu: Mapping[str, Any]) -> Check:
    flags = [flag for flag in cpu["flags"] if flag in ("amx_bf16", "avx512_bf16", "bf16")]
    without = "no instructions for it: AMP on the CPU will be slower, not faster"
    return Check("bf16 on the CPU", f"{', '.join(flags) or without} ({cpu['model']})")


def _compiler(device: str) -> Check:
    problem, _, fix = devices.compiler_problem(device).partition(": ")
    return Check("compiler", f"torch.compile on {device}: {problem or 'has what it needs'}", fix)


def _pynvml() -> list[Check]:
    deprecated = version("pynvml")
    detail = f"the deprecated package pynvml {deprecated} is installed"
    return [Check("pynvml", detail, _DEPRECATED)] if deprecated else []


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
