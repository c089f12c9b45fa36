"""Which build of PyTorch `make` installs, and where it comes from."""

import subprocess
import zipfile

import pytest

from docs import torch_build
from tests.support import environments
from tests.support.cli import ROOT

INDEX = "https://example.org/whl/cpu"


@pytest.mark.parametrize(
    ("wanted", "files", "system", "has_index", "build", "why"),
    [
        ("cpu", ["proc/driver/nvidia/version"], "linux", False, "cpu", "TORCH=cpu"),
        ("cuda", [], "linux", True, "default", "TORCH=cuda"),
        ("auto", [], "linux", True, "cpu", "no NVIDIA driver"),
        ("auto", [], "linux", False, "default", "does not answer"),
        ("auto", ["dev/nvidiactl"], "linux", True, "default", "is an NVIDIA driver"),
        ("auto", ["dev/dxg"], "linux", True, "default", "is an NVIDIA driver"),
        ("auto", [], "darwin", True, "default", "only build"),
    ],
)
def test_the_small_build_is_taken_where_no_driver_is_and_its_index_answers(
    tmp_path, monkeypatch, wanted, files, system, has_index, build, why
):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(torch_build, "answers", lambda index: has_index)
    taken, reason = torch_build.choose(wanted, INDEX, tmp_path, system)
    assert taken == build and why in reason


def test_an_index_that_is_not_there_does_not_answer(tmp_path):
    assert not torch_build.answers("http://127.0.0.1:9")
    assert not torch_build.answers(str(tmp_path))
    assert not torch_build.answers("nonsense")


def wheel(folder, name, version):
    """An empty package as a wheel."""
    record = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}/__init__.py", "")
        file.writestr(f"{record}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(f"{record}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{record}/RECORD", "")


def test_the_small_build_comes_from_a_folder_and_is_what_the_pins_ask_for(tmp_path):
    """A version that ends in +cpu is the pinned one for pip, which then leaves it as it is."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    pins = [line for line in torch_build.REQUIREMENTS.read_text().splitlines() if line.startswith("torch")]
    for pin in pins:
        wheel(wheels, pin.partition("==")[0], f"{pin.partition('==')[2]}+cpu")
    python = environments.make(tmp_path / "environment", ("torch",))
    command = [python, "-m", "docs.torch_build", "auto", ".venv", str(wheels)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if "PyTorch for the CPU" not in done.stdout:  # there is a driver: it is asked for
        command[3] = "cpu"
        subprocess.run(command, cwd=ROOT, check=True)
    environments.install(python, *pins)  # asks no index
    listed = subprocess.run([python, "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert listed.count("+cpu") == 2


@pytest.mark.parametrize(("wanted", "code"), [("cpu", 1), ("gpu", 2)])
def test_what_was_asked_for_and_cannot_be_had_is_an_error(tmp_path, wanted, code):
    assert torch_build.main(wanted, ".venv", str(tmp_path)) == code
