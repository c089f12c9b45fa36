"""The check-up of a machine: what it has, what is wrong with it, and how to fix it."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import psutil

from perfkit.machine import computer, cores, devices
from perfkit.machine.computer import GIB, version
from perfkit.machine.devices import Found

_ONE_CORE = "Loader workers and training share one core: give the container more (docker run --cpus)"
_NO_JUPYTER = "Install it: pip install -e '.[notebook]'"
_LITTLE_MEMORY = "Up to three processes train at once: close other programs"
_SMALL_SHM = "Loader workers crash when it is full: docker run --shm-size=2g (or --ipc=host)"
_OTHER_TORCH = "Install the versions in requirements.txt: pip install -r requirements.txt"


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
    found, machine, cpu = devices.ask_torch(), computer.facts(), computer.facts()["cpu"]
    jupyter, torch = _versions("jupyterlab", "ipywidgets", "ipykernel"), _versions("torch", "torchvision")
    built = ", ".join(f"{name} {number}" for name, number in computer.torch_build().items()) or "the CPU"
    torch += f", built for {built}" if found.imported else f"; it cannot be imported: {found.error}"
    has_torch = found.imported and "missing" not in torch
    available = min(psutil.virtual_memory().available, machine["memory_bytes"])
    memory = f"{machine['memory_bytes'] / GIB:.1f} GiB, {available / GIB:.1f} GiB available"
    shm = Check("/dev/shm", "n/a: this system has none")
    if shared := machine["shm_bytes"]:
        shm = Check("/dev/shm", f"{shared / GIB:.2f} GiB", _SMALL_SHM if shared < GIB else "")
    bf16 = (
        ", ".join(flag for flag in cpu["flags"] if "bf16" in flag)
        or "no instructions for it: AMP on the CPU will be slower, not faster"
    )
    device = devices.check_device(None)
    problem, _, fix = devices.compiler_problem(device).partition(": ")
    return [
        Check("torch", torch, "" if has_torch else _OTHER_TORCH, blocking=not has_torch),
        Check("Jupyter", jupyter, _NO_JUPYTER if "missing" in jupyter else ""),
        Check("cores", cores.core_report(), _ONE_CORE if cores.usable_cores() == 1 else ""),
        Check("memory", memory, _LITTLE_MEMORY if available < 3 * GIB else ""),
        shm,
        _gpu(machine, found),
        Check("bf16 on the CPU", f"{bf16} ({cpu['model']})"),
        Check("compiler", f"torch.compile on {device}: {problem or 'has what it needs'}", fix),
        _data(),
    ]


def _versions(*packages: str) -> str:
    return ", ".join(f"{name} {version(name) or 'missing'}" for name in packages)


def _gpu(machine: Mapping[str, Any], found: Found) -> Check:
    driver = f", driver {machine['driver']}" if machine["driver"] else ""
    if usable := [*found.cuda, *["Apple GPU"] * found.mps]:
        return Check("GPU", ", ".join(usable) + driver)
    if machine["gpus"]:
        why = found.error or "torch gives no reason"
        remedy = f"{why}. Update the driver, or install a torch built for an older CUDA"
        if not computer.torch_build():
            remedy = "This torch is built for the CPU: install the build for CUDA (see pytorch.org)"
        elif (mask := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            remedy = f"CUDA_VISIBLE_DEVICES is '{mask}': unset it"
        return Check("GPU", f"torch cannot use {machine['gpus'][0]['name']}{driver}", remedy)
    if any((cores.ROOT / "dev" / node).exists() for node in ("nvidiactl", "nvidia0")):
        remedy = "Run nvidia-smi; in a container start it with --gpus all; after a driver update, reboot"
        return Check("GPU", "there is a device node, but the NVIDIA driver does not respond", remedy)
    return Check("GPU", "n/a: none found; stages that need one are shown as n/a")


def _data() -> Check:
    folder = computer.data_folder().absolute()
    existing = next(part for part in (folder, *folder.parents) if part.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = "Set PERFKIT_DATA to another folder"
        return Check("data folder", f"cannot write to {folder}", remedy, blocking=True)
    free = shutil.disk_usage(existing).free
    remedy = "Free some space, or set PERFKIT_DATA to another disk" if free < 2 * GIB else ""
    return Check("data folder", f"{folder}, {free / GIB:.1f} GiB free", remedy)
