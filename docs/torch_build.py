"""Installs PyTorch's small build for the CPU where it fits: `python -m docs.torch_build auto .venv INDEX`.

`make` calls it before everything else is installed. It needs nothing but Python and pip. `auto` takes this
build on Linux where there is no NVIDIA driver and the index answers; elsewhere, pip then installs what PyPI
has for the system.
"""

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

REQUIREMENTS = Path(__file__).parents[1] / "requirements.txt"
DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
"""One of them is there with an NVIDIA driver; the last one under WSL."""
SIZES = {"cpu": "1.5 GB", "default": "6 GB"}
"""On disk afterwards, with JupyterLab, on Linux."""


def answers(index: str) -> bool:
    """Whether an index has torch: its address, or a folder of wheels."""
    if Path(index).is_dir():
        return any(Path(index).glob("torch-*.whl"))
    try:
        with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=5):
            return True
    except (OSError, ValueError):
        return False


def choose(wanted: str, index: str, root: Path = Path("/"), system: str = sys.platform) -> tuple[str, str]:
    """`cpu` or `default`, and why."""
    if wanted == "cpu":
        return "cpu", "TORCH=cpu"
    if wanted != "auto":
        return "default", f"TORCH={wanted}"
    if system != "linux":
        return "default", "this system's only build"
    if any((root / place.lstrip("/")).exists() for place in DRIVER):
        return "default", "there is an NVIDIA driver"
    if not answers(index):
        return "default", f"{index} does not answer, which has a smaller one"
    return "cpu", "there is no NVIDIA driver; TORCH=cuda takes the other one"


def install(index: str) -> int:
    """Installs the pinned versions of torch and torchvision, built for the CPU; pip's exit code."""
    pins = re.findall(r"^(torch(?:vision)?==[\d.]+)", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    place = ["--index-url", index]
    if Path(index).is_dir():
        place = ["--no-index", "--find-links", index]
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", *place]
    return subprocess.run([*command, *(f"{pin}+cpu" for pin in pins)], check=False).returncode


def main(wanted: str, environment: str, index: str) -> int:
    """Says what will be installed and how large it is, then installs what is not on PyPI."""
    if wanted not in ("auto", "cpu", "cuda"):
        print(f"TORCH is '{wanted}'. Allowed: auto, cpu, cuda", file=sys.stderr)
        return 2
    build, reason = choose(wanted, index)
    kind = "PyTorch for the CPU" if build == "cpu" else "PyTorch as PyPI has it (on Linux with CUDA)"
    about = f"some minutes the first time, {SIZES[build]} on disk afterwards"
    print(
        f"Installing {kind} and JupyterLab into {environment}: {about}. Why this build: {reason}.", flush=True
    )
    if build == "default":
        return 0
    code = install(index)
    if code and wanted == "auto":
        print("It cannot be installed, so that the build of PyPI is taken.", flush=True)
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
