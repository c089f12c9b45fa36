"""An environment as Colab has it: older packages of Jupyter, no msgspec, no perfkit."""

import sys
from pathlib import Path

import pytest

from tests.support import environments

UNPACKED = Path(sys.prefix) / "colab"
WHEELS = UNPACKED / "wheels"
"""What the guarded cell installs, and what builds perfkit."""
MISSING = ("msgspec", "pynvml", "nvidia_ml_py")


def require():
    """Skips where `make test` has not unpacked Colab's packages; in CI, that is a failure."""
    if not (UNPACKED / "packages").is_dir() or not WHEELS.is_dir():
        pytest.skip("Colab's packages are not here: make test fetches them (tests/colab.txt)")


def environment(folder):
    """Makes the environment in a folder that is empty, and returns its Python."""
    return environments.make(folder, MISSING, UNPACKED / "packages")
