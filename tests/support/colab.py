"""An environment as Colab has it: older packages of Jupyter first, no msgspec, no perfkit.

Its packages are links into this one's, and into what `make test` has unpacked in `.venv/colab`.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

UNPACKED = Path(sys.prefix) / "colab"
WHEELS = UNPACKED / "wheels"
"""What the guarded cell installs, and what builds perfkit."""
MISSING = ("msgspec", "pynvml", "nvidia_ml_py", "perfkit", "__editable__", "_virtualenv")
"""How the files of packages begin that Colab has not."""


def require():
    """Skips where `make test` has not unpacked Colab's packages; in CI, that is a failure."""
    if not (UNPACKED / "packages").is_dir() or not WHEELS.is_dir():
        pytest.skip("Colab's packages are not here: make test fetches them (tests/colab.txt)")


def environment(folder):
    """Makes the environment in a folder that is empty, and returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(folder, *Path(sysconfig.get_path("purelib")).relative_to(sys.prefix).parts)
    for name in os.listdir(UNPACKED / "packages"):
        os.symlink(UNPACKED / "packages" / name, site / name)
    colabs = {_package(name) for name in os.listdir(site)}
    for source in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for name in os.listdir(source):
            if name.startswith(MISSING) or _package(name) in colabs or (site / name).exists():
                continue
            os.symlink(Path(source, name), site / name)
    return Path(folder, "bin", "python")


def offline():
    """The variables with which pip finds the wheels that were fetched, and asks no index."""
    return {"PIP_NO_INDEX": "1", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": str(WHEELS)}


def install(python, *packages):
    """Installs wheels that were fetched, without what they need."""
    command = [python, "-m", "pip", "install", "-q", "--no-deps", *packages]
    subprocess.run(command, env={**os.environ, **offline()}, check=True)


def _package(name):
    """What the files of one package have in common: `jupyter_client` of `jupyter_client-7.4.9.dist-info`."""
    return name.partition("-")[0].removesuffix(".py").lower()
