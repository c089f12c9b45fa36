"""A bundle installs into a fresh environment from its own folder; on another kind of machine it says so."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from docs.bundle import __main__ as bundle

SMALL = ("setuptools", "msgspec")
"""What installing perfkit itself needs, and one package of its own with compiled code."""


def repacked(name: str, folder: Path) -> None:
    """An installed package as a wheel again, so that this test downloads nothing."""
    package = importlib.metadata.distribution(name)
    tags = [line[5:] for line in (package.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: ")]
    python, abi, _ = tags[0].split("-")
    systems = ".".join(tag.split("-")[2] for tag in tags)
    target = folder / f"{name}-{package.version}-{python}-{abi}-{systems}.whl"
    with zipfile.ZipFile(target, "w") as wheel:
        for file in package.files or []:
            if (
                ".." not in file.parts
                and file.suffix != ".pyc"
                and file.name not in ("INSTALLER", "REQUESTED")
            ):
                wheel.write(file.locate(), str(file))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A bundle of two packages."""
    wheelhouse = tmp_path / "wheelhouse"
    wheelhouse.mkdir()
    for name in SMALL:
        repacked(name, wheelhouse)
    folder = bundle.build(tmp_path / "bundle", torch=False, wheelhouse=wheelhouse)
    pins = [f"{name}=={importlib.metadata.version(name)}\n" for name in SMALL]
    (folder / "requirements.txt").write_text("".join(pins))
    return folder


def install(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """As on the other machine: with nothing but the folder, and an index that does not answer."""
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    command = [sys.executable, "install.py", *options]
    return subprocess.run(command, cwd=folder, env=nowhere, capture_output=True, text=True, check=False)


def test_a_bundle_installs_from_its_own_folder(small: Path) -> None:
    about = json.loads((small / "bundle.json").read_text())
    (small / "bundle.json").write_text(json.dumps(about | {"torch": True}))
    done = install(small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "jupyter" in done.stdout
    python = small / ".venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    code = "import msgspec, perfkit; print(msgspec.__file__, perfkit.__file__)"
    shown = subprocess.check_output([python, "-c", code], cwd="/", env={}, text=True).split()
    assert Path(shown[0]).is_relative_to(small / ".venv") and Path(shown[1]).is_relative_to(small / "perfkit")
    assert (small / "data" / "recordings" / "cpu-quick.json").exists()
    assert len(list((small / "notebooks").glob("*.ipynb"))) > 9


def test_a_bundle_says_when_it_does_not_suit(small: Path) -> None:
    refused = install(small)
    assert refused.returncode == 1 and "--my-torch" in refused.stdout
    about = json.loads((small / "bundle.json").read_text())
    for version in ("3.99.0", f"{sys.version_info.major}.{sys.version_info.minor}.99"):
        (small / "bundle.json").write_text(json.dumps(about | {"python": version, "torch": True}))
        refused = install(small)
        assert refused.returncode == 1 and version in refused.stdout
    assert not (small / ".venv").exists()


def test_torch_is_left_out_of_the_pins(small: Path, tmp_path: Path) -> None:
    with_torch = bundle.build(tmp_path / "other", wheelhouse=tmp_path / "wheelhouse")
    without = bundle.build(tmp_path / "third", torch=False, wheelhouse=tmp_path / "wheelhouse")
    pins = [(folder / "requirements.txt").read_text() for folder in (with_torch, without)]
    assert "torch==" in pins[0] and "torchvision==" in pins[0]
    assert "torch" not in "".join(line for line in pins[1].splitlines() if not line.startswith("#"))
