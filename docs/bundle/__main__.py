"""Packs perfkit, its notebooks and every wheel they need into one folder that installs without a network.

    make bundle                          # with torch as pip chooses it here
    make bundle ARGS="--without-torch"   # for machines that have torch 2.11 or newer already
    make bundle ARGS="--pip=--index-url=https://download.pytorch.org/whl/cpu"   # any option of pip download

On the other machine (same system, same version of Python): unpack, then `python install.py`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("perfkit", "notebooks", "data", "docs", "pyproject.toml", "requirements.txt", "README.md", "LICENSE")
_TORCH = re.compile(r"^(torch|torchvision)\b")


class Failed(Exception):
    """The bundle cannot be built."""


def build(folder: Path, torch: bool = True, wheelhouse: Path | None = None, pip: Sequence[str] = ()) -> Path:
    """Makes the folder from nothing.

    Args:
        folder: of the bundle.
        torch: whether torch, torchvision and what they need are in it.
        wheelhouse: a folder of wheels to take, so that nothing is downloaded.
        pip: further options of `pip download`.

    Returns:
        The folder.

    Raises:
        Failed: git or pip failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    for name in _output("git", "ls-files", *PARTS).splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    wanted = folder / "requirements.txt"
    wanted.write_text("".join(line for line in pins if torch or not _TORCH.match(line)), encoding="utf-8")
    if wheelhouse:
        for wheel in wheelhouse.glob("*.whl"):
            shutil.copy2(wheel, wheels)
    else:
        # requirements.txt is complete but for what torch brings along on this system.
        options = ["--only-binary=:all:", *([] if torch else ["--no-deps"]), *pip]
        _output(sys.executable, "-m", "pip", "download", "-q", "-d", str(wheels), "-r", str(wanted), *options)
    about = {"python": _python(), "platform": sysconfig.get_platform(), "torch": torch}
    (folder / "bundle.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    shutil.copy2(Path(__file__).parent / "install.py", folder / "install.py")
    return folder


def _python() -> str:
    return "{}.{}.{}".format(*sys.version_info[:3])


def _output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command[:4])} … failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def size(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.bundle", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "perfkit-bundle")
    parser.add_argument("--without-torch", action="store_true", help="for machines that have torch already")
    parser.add_argument("--wheelhouse", type=Path, help="a folder of wheels, in place of a download")
    parser.add_argument("--pip", action="append", default=[], help="an option of pip download; repeatable")
    given = parser.parse_args()
    try:
        folder = build(given.folder, not given.without_torch, given.wheelhouse, given.pip)
    except Failed as problem:
        print(problem, file=sys.stderr)
        return 1
    wheels = list((folder / "wheels").iterdir())
    print(f"wrote {folder}: {len(wheels)} wheels, {size(folder) / 1e6:,.0f} MB in all")
    print("Copy the folder to the other machine; there: python install.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
