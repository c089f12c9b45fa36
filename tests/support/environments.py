"""Environments of Python with other packages than this one's: each is a folder of links into it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.cli import ROOT

SOURCE = ("perfkit", "data", "pyproject.toml", "setup.py", "README.md", "LICENSE")
"""What a wheel is made of."""
PERFKIT = ("perfkit", "__editable__", "_virtualenv")
"""How the files of perfkit itself begin, and what belongs to one environment alone."""


def make(folder, lacking=(), first=None):
    """Makes an environment in a folder that is empty, and returns its Python.

    Args:
        folder: the place.
        lacking: how the files of packages begin that it has not; perfkit is never there.
        first: a folder of packages that take the place of this environment's.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = Path(folder, *Path(sysconfig.get_path("purelib")).relative_to(sys.prefix).parts)
    for name in os.listdir(first) if first else ():
        os.symlink(Path(first, name), site / name)
    replaced = {package(name) for name in os.listdir(site)}
    for source in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for name in os.listdir(source):
            is_wanted = not name.startswith((*PERFKIT, *lacking)) and package(name) not in replaced
            if is_wanted and not (site / name).exists():
                os.symlink(Path(source, name), site / name)
    return Path(folder, "bin", "python")


def package(name):
    """What the files of one package have in common: `jupyter_client` of `jupyter_client-7.4.9.dist-info`."""
    return name.partition("-")[0].removesuffix(".py").lower()


def install(python, *packages, wheels=""):
    """Installs from a folder of wheels, from a folder of source, or a wheel: no index is asked."""
    command = [python, "-m", "pip", "install", "-q", "--no-deps", *packages]
    subprocess.run(command, env={**os.environ, **offline(wheels)}, check=True)


def offline(wheels):
    """The variables with which pip finds the wheels of a folder, and asks no index."""
    return {"PIP_NO_INDEX": "1", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": str(wheels)}


def copy_of_source(folder):
    """What a wheel is made of; beside the checkout, as a build leaves files there."""
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "cache", "runs")
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder
