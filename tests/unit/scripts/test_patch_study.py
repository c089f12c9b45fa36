"""Writing a patch, and how the patched script is started."""

import hashlib

import pytest

from perfkit.errors import InvalidValue
from perfkit.results.parity import Check
from perfkit.results.stats import Ratio
from perfkit.scripts import patch_study as patching
from perfkit.scripts.launch import Launch
from perfkit.scripts.patch import Change, Patch
from perfkit.scripts.verification import Verification


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_bytes(b"old\r\n")
    path.chmod(0o750)
    return path


def test_a_file_is_written_whole_with_its_mode(script):
    patching.write(Patch([Change(str(script), b"old\r\n", b"new\r\n")], []))
    assert script.read_bytes() == b"new\r\n"
    assert script.stat().st_mode & 0o777 == 0o750


def test_a_link_stays_a_link(script, tmp_path):
    link = tmp_path / "link.py"
    link.symlink_to(script)
    patching.write(Patch([Change(str(link), b"old\r\n", b"new\r\n")], []))
    assert link.is_symlink() and script.read_bytes() == b"new\r\n"


def test_nothing_is_written_if_a_file_has_changed(script, tmp_path):
    other = tmp_path / "data.py"
    other.write_bytes(b"data\n")
    changes = [Change(str(other), b"data\n", b"new\n"), Change(str(script), b"former\n", b"new\n")]
    with pytest.raises(InvalidValue, match="has changed meanwhile"):
        patching.write(Patch(changes, []))
    assert other.read_bytes() == b"data\n" and script.read_bytes() == b"old\r\n"


def test_the_main_file_is_there_itself(script, tmp_path):
    result = Patch([Change(str(tmp_path / "data.py"), b"", b"new")], ["--epochs", "2"])
    launch = patching.patched(Launch("train.py", ["--epochs", "1"], folder=tmp_path), result)
    assert dict(launch.replaced) == {tmp_path / "data.py": b"new", script: b"old\r\n"}
    assert launch.program == str(script) and launch.arguments == ("--epochs", "2")


def test_arguments_of_a_launcher_stay(script, tmp_path):
    launch = Launch("torchrun", ["--nproc-per-node", "1", "train.py", "--epochs", "1"], folder=tmp_path)
    assert patching._own_arguments(launch, script) == 3
    assert patching._own_arguments(Launch("train.py", ["-b", "1"], folder=tmp_path), script) == 0


@pytest.mark.parametrize(
    ("verdict", "losses", "ok", "start"),
    [
        ("no measurable difference", True, True, "verified: "),
        ("disturbed", True, True, "verified by its losses only"),
        ("slower", True, False, "NOT verified"),
        ("no measurable difference", False, False, "NOT verified"),
    ],
)
def test_the_verdict_on_a_patch(verdict, losses, ok, start):
    check = Check("losses", losses, "equal" if losses else "differ")
    result = Verification(Ratio(0.9, 0.8, 1.0, verdict), 10, check)
    assert result.ok is ok and result.describe().startswith(start)


def test_a_patched_script_has_a_digest_of_its_own(script, tmp_path):
    launch = Launch("train.py", folder=tmp_path)
    edited = patching.patched(launch, Patch([Change(str(script), b"old\r\n", b"new\r\n")], []))
    assert edited.digest() != launch.digest()
    assert edited.digest() == hashlib.sha256(b"new\r\n").hexdigest()[:16]
