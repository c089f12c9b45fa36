"""Which devices torch can train on, and the check-up of this machine.

A child process asks torch: this process never gets a CUDA context.
"""

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from perfkit import machine
from perfkit.errors import InvalidValue, one_of
from perfkit.machine import GIB, cores

_ASK_TORCH = """
import gc; gc.disable()  # an eighth less time
import json, torch
there = torch.cuda.is_available()
cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if there else []
bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if there else None
print(json.dumps(dict(imported=True, cuda=cuda, bf16=bf16, mps=torch.backends.mps.is_available())))
"""
_OTHERS = " (or cuda:1, the second GPU; sim:v100, a simulated one; recorded:NAME)"


class Found(msgspec.Struct, frozen=True):
    """What torch finds on this machine: the names of the GPUs, whether the first computes in bfloat16.

    `error` is the last line that torch wrote to stderr, or why it could not be asked.
    """

    cuda: list[str] = []
    mps: bool = False
    bf16: bool | None = None
    imported: bool = False
    error: str = ""


@functools.cache
def ask_torch() -> Found:
    """Asks torch in a process of its own, which takes seconds."""
    command = [sys.executable, "-c", _ASK_TORCH]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        answer, message = (text.strip().rpartition("\n")[2].strip() for text in (done.stdout, done.stderr))
        return msgspec.structs.replace(msgspec.json.decode(answer, type=Found), error=message)
    except (OSError, subprocess.SubprocessError) as problem:
        return Found(error=str(problem))
    except msgspec.DecodeError:
        return Found(error=message or f"torch's process ended with {done.returncode}")


def accelerators() -> Found:
    """What torch finds; it is not asked where nothing can be found."""
    return ask_torch() if _may_have_accelerator() else Found()


def _may_have_accelerator() -> bool:
    if sys.platform == "darwin":
        return os.uname().machine == "arm64"
    return bool(machine.torch_build()) and (
        _has_node("nvidiactl", "nvhost-gpu", "kfd", "dxg") or bool(machine.facts()["gpus"])
    )


def _has_node(*names: str) -> bool:
    return any((cores.ROOT / "dev" / name).exists() for name in names)


def check_device(name: str | None) -> str:
    """`cpu`, `cuda`, `cuda:1` or `mps`, if it exists here; for None `cuda`, else `mps`, else `cpu`."""
    if name is None:
        return "cuda" if accelerators().cuda else "mps" if accelerators().mps else "cpu"
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        raise one_of(name, ["cuda", "mps", "cpu"], "device", see=_OTHERS)
    found = accelerators() if name != "cpu" else Found()
    available = [*(f"cuda:{number}" for number in range(len(found.cuda))), *["mps"] * found.mps, "cpu"]
    if name in available or (name == "cuda" and found.cuda):
        return name
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = "" if mask is None else f" (CUDA_VISIBLE_DEVICES is '{mask}')"
    raise InvalidValue(
        f"torch finds no device '{name}' here{why}",
        f"Available: {', '.join(available)}. `perfkit doctor` says what is wrong with a GPU",
    )


def compiler_problem(device: str) -> str:
    """What torch.compile lacks for a device, with the remedy; empty where it lacks nothing."""
    variable, names = "CXX", ["clang++" if sys.platform == "darwin" else "g++"]  # as inductor looks for it
    if device.startswith("cuda"):
        if importlib.util.find_spec("triton") is None:
            return "Triton is missing: pip install triton"
        variable, names = "CC", ["gcc", "clang"]
    names = shlex.split(os.environ.get(variable, ""))[:1] or names
    if not any(map(shutil.which, names)):
        return f"no compiler ({' or '.join(names)}): install it, or set {variable} to another one"
    # The scheme that inductor and Triton use; Debian's default one names another folder.
    header = Path(sysconfig.get_path("include", "posix_prefix")) / "Python.h"
    return "" if header.is_file() else f"Python.h is missing in {header.parent}: apt install python3-dev"


# ---------------------------------------------------------------- the check-up

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
    found, here, cpu = ask_torch(), machine.facts(), machine.facts()["cpu"]
    jupyter, torch = _versions("jupyterlab", "ipywidgets", "ipykernel"), _versions("torch", "torchvision")
    built = ", ".join(f"{name} {number}" for name, number in machine.torch_build().items()) or "the CPU"
    torch += f", built for {built}" if found.imported else f"; it cannot be imported: {found.error}"
    has_torch = found.imported and "missing" not in torch
    available = min(psutil.virtual_memory().available, here["memory_bytes"])
    memory = f"{here['memory_bytes'] / GIB:.1f} GiB, {available / GIB:.1f} GiB available"
    shm = Check("/dev/shm", "n/a: this system has none")
    if shared := here["shm_bytes"]:
        shm = Check("/dev/shm", f"{shared / GIB:.2f} GiB", _SMALL_SHM if shared < GIB else "")
    bf16 = (
        ", ".join(flag for flag in cpu["flags"] if "bf16" in flag)
        or "no instructions for it: AMP on the CPU will be slower, not faster"
    )
    device = check_device(None)
    problem, _, fix = compiler_problem(device).partition(": ")
    return [
        Check("torch", torch, "" if has_torch else _OTHER_TORCH, blocking=not has_torch),
        Check("Jupyter", jupyter, _NO_JUPYTER if "missing" in jupyter else ""),
        Check("cores", _cores(), _ONE_CORE if cores.usable_cores() == 1 else ""),
        Check("memory", memory, _LITTLE_MEMORY if available < 3 * GIB else ""),
        shm,
        _gpu(here, found),
        Check("bf16 on the CPU", f"{bf16} ({cpu['model']})"),
        Check("compiler", f"torch.compile on {device}: {problem or 'has what it needs'}", fix),
        _data(),
    ]


def _cores() -> str:
    visible, (granted, _) = os.cpu_count() or 1, cores.quota()
    quota = f", by a cgroup quota of {granted:.1f}" if granted < len(cores.affinity()) else ""
    return f"{cores.usable_cores()} of {visible} visible cores usable{quota}"


def _versions(*packages: str) -> str:
    return ", ".join(f"{name} {machine.version(name) or 'missing'}" for name in packages)


def _gpu(here: Mapping[str, Any], found: Found) -> Check:
    driver = f", driver {here['driver']}" if here["driver"] else ""
    if usable := [*found.cuda, *["Apple GPU"] * found.mps]:
        return Check("GPU", ", ".join(usable) + driver)
    if here["gpus"]:
        why = found.error or "torch gives no reason"
        remedy = f"{why}. Update the driver, or install a torch built for an older CUDA"
        if not machine.torch_build():
            remedy = "This torch is built for the CPU: install the build for CUDA (see pytorch.org)"
        elif (mask := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            remedy = f"CUDA_VISIBLE_DEVICES is '{mask}': unset it"
        return Check("GPU", f"torch cannot use {here['gpus'][0]['name']}{driver}", remedy)
    if _has_node("nvidiactl", "nvidia0"):
        remedy = "Run nvidia-smi; in a container start it with --gpus all; after a driver update, reboot"
        return Check("GPU", "there is a device node, but the NVIDIA driver does not respond", remedy)
    return Check("GPU", "n/a: none found; stages that need one are shown as n/a")


def _data() -> Check:
    folder = machine.data_folder()
    existing = next(part for part in (folder, *folder.parents) if part.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = "Set PERFKIT_DATA to another folder"
        return Check("data folder", f"cannot write to {folder}", remedy, blocking=True)
    free = shutil.disk_usage(existing).free
    remedy = "Free some space, or set PERFKIT_DATA to another disk" if free < 2 * GIB else ""
    return Check("data folder", f"{folder}, {free / GIB:.1f} GiB free", remedy)
