"""The check-up of this machine: what it has for measuring, and what to fix."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perfkit import machine
from perfkit.machine import GIB, cores, devices, gpus
from perfkit.machine.devices import Accelerators
from perfkit.show.document import Col, Content, tabulate

_ONE_CORE = "Loader workers and training share one core: give the container more (docker run --cpus)"
_NO_JUPYTER = "Notebooks need it: pip install jupyterlab ipywidgets anywidget matplotlib"
_LITTLE_MEMORY = "Up to three processes train at once: close other programs"
_SMALL_SHM = "Loader workers crash when it is full: docker run --shm-size=2g (or --ipc=host)"
_OTHER_TORCH = "Install the versions in requirements.txt: pip install -r requirements.txt"


@dataclass(frozen=True)
class HealthCheck:
    """One aspect of the machine, with a remedy if something is wrong."""

    name: str
    detail: str
    remedy: str = ""
    blocking: bool = False  # whether nothing can be measured until it is fixed

    @property
    def status(self) -> Literal["green", "amber", "red"]:
        """The severity: green, amber or red."""
        if not self.remedy:
            return "green"
        return "red" if self.blocking else "amber"


def checkup() -> list[HealthCheck]:
    """Checks everything that determines what can be measured here. Changes nothing."""
    found = devices.ask_torch()
    here = machine.facts()
    cpu = here["cpu"]
    jupyter = _versions("ipywidgets", "ipykernel", "anywidget", "matplotlib")
    torch = _versions("torch", "torchvision")
    built = ", ".join(f"{name} {number}" for name, number in machine.torch_build().items()) or "the CPU"
    torch += f", built for {built}" if found.imported else f"; it cannot be imported: {found.error}"
    has_torch = found.imported and "missing" not in torch
    available = cores.free_memory_bytes()
    memory = f"{here['memory_bytes'] / GIB:.1f} GiB, {available / GIB:.1f} GiB available"
    shm = HealthCheck("/dev/shm", "n/a: this system has none")
    if shared := here["shm_bytes"]:
        shm = HealthCheck("/dev/shm", f"{shared / GIB:.2f} GiB", _SMALL_SHM if shared < GIB else "")
    flags = ", ".join(flag for flag in cpu["flags"] if "bf16" in flag)
    bf16 = flags or "no instructions for it: AMP on the CPU will be slower, not faster"
    if not (cores.ROOT / "proc/cpuinfo").is_file():
        bf16 = "not known: this system does not list the CPU's instructions"
    device = devices.check_device(None)
    problem, _, fix = devices.compiler_problem(device).partition(": ")
    return [
        HealthCheck("torch", torch, "" if has_torch else _OTHER_TORCH, blocking=not has_torch),
        HealthCheck("Jupyter", jupyter, _NO_JUPYTER if "missing" in jupyter else ""),
        HealthCheck("cores", _cores(), _ONE_CORE if cores.usable_cores() == 1 else ""),
        HealthCheck("memory", memory, _LITTLE_MEMORY if available < 3 * GIB else ""),
        shm,
        _gpu(here, found),
        HealthCheck("bf16 on the CPU", f"{bf16} ({cpu['model']})"),
        HealthCheck("compiler", f"torch.compile on {device}: {problem or 'has what it needs'}", fix),
        _data(),
    ]


def _cores() -> str:
    visible = os.cpu_count() or 1
    (granted, _) = cores.quota()
    quota = f", by a cgroup quota of {granted:.1f}" if granted < len(cores.affinity()) else ""
    return f"{cores.usable_cores()} of {visible} visible cores usable{quota}"


def _versions(*packages: str) -> str:
    return ", ".join(f"{name} {machine.version(name) or 'missing'}" for name in packages)


def _gpu(here: Mapping[str, Any], found: Accelerators) -> HealthCheck:
    driver = f", driver {here['driver']}" if here["driver"] else ""
    usable = [*found.cuda, "Apple GPU"] if found.mps else found.cuda
    if usable:
        unseen = "; GPU use by Windows programs is not visible here" if gpus.in_wsl() else ""
        return HealthCheck("GPU", ", ".join(usable) + driver + unseen)
    if here["gpus"]:
        why = found.error or "torch gives no reason"
        remedy = f"{why}. Update the driver, or install a torch built for an older CUDA"
        if not machine.torch_build():
            remedy = "This torch is built for the CPU: install the build for CUDA (see pytorch.org)"
        elif (mask := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            remedy = f"CUDA_VISIBLE_DEVICES is '{mask}': unset it"
        return HealthCheck("GPU", f"torch cannot use {here['gpus'][0]['name']}{driver}", remedy)
    if devices.has_node("nvidiactl", "nvidia0"):
        remedy = "Run nvidia-smi; in a container start it with --gpus all; after a driver update, reboot"
        return HealthCheck("GPU", "there is a device node, but the NVIDIA driver does not respond", remedy)
    return HealthCheck("GPU", "n/a: none found; stages that need one are shown as n/a")


def _data() -> HealthCheck:
    folder = machine.data_folder()
    existing = next(part for part in (folder, *folder.parents) if os.path.exists(part))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = "Set PERFKIT_DATA to a different folder"
        return HealthCheck("data folder", f"cannot write to {folder}", remedy, blocking=True)
    free = shutil.disk_usage(existing).free
    remedy = "Free some space, or set PERFKIT_DATA to a different disk" if free < 2 * GIB else ""
    return HealthCheck("data folder", f"{folder}, {free / GIB:.1f} GiB free", remedy)


def sections(about: str, checks: Sequence[HealthCheck], stages: Sequence[Any]) -> list[Content]:
    """Shows what this machine has, what to fix, and which stages can run here."""
    columns = Col("what", "name"), Col("state", "status"), Col("found", "detail"), Col("what to do", "remedy")
    here = Col("here", lambda stage: f"n/a: {stage.reason}" if stage.reason else "will be measured")
    ladder = tabulate((Col("stage", "title"), Col("name", "name"), here), stages, "Stages")
    return [tabulate(columns, checks, about), ladder]
