"""Measurements on one device take turns, whatever it is called."""

import os
import sys
import threading

import pytest

from perfkit import machine
from perfkit.errors import Cancelled, PerfkitError
from perfkit.machine import gpus
from perfkit.process import locks
from perfkit.process.locks import device_lock, lock_folder, lock_names


def test_shells_with_folders_of_their_own_for_temporary_files_exclude_each_other(monkeypatch, tmp_path):
    monkeypatch.delenv("PERFKIT_LOCKS")
    usual = lock_folder()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert lock_folder() == usual


@pytest.mark.parametrize(
    ("device", "names"),
    [
        ("cpu", ["cores"]),
        ("sim:v100", ["cores"]),
        ("cuda", ["cores", "GPU-b"]),
        ("cuda:0", ["cores", "GPU-b"]),
        ("cuda:1", ["cores", "GPU-a", "GPU-b"]),  # of several kinds it may be any (`gpus.uuids`)
        ("cuda:7", ["cores", "gpu-7"]),
        (None, ["cores", "GPU-a", "GPU-b"]),
    ],
)
def test_whoever_trains_on_a_gpu_holds_it_and_the_cores_that_load_for_it(monkeypatch, device, names):
    known = {"0": ["GPU-b"], "1": ["GPU-b", "GPU-a"]}
    monkeypatch.setattr(machine, "facts", lambda: {"gpus": [{"uuid": "GPU-b"}, {"uuid": "GPU-a"}]})
    monkeypatch.setattr(gpus, "uuids", lambda index: known.get(index, []))
    assert lock_names(device) == names


def told_while_waiting():
    """What the second of two measurements is told, until it gives up."""
    said, stop = [], threading.Event()

    def tell(phase):
        said.append(phase)
        stop.set()

    with device_lock("cpu"), pytest.raises(Cancelled), device_lock("cpu", stop, tell):
        pytest.fail("both have the cores")
    return said


@pytest.mark.parametrize(
    ("command", "who"),
    [
        (["/bin/perfkit", "watch", "train.py"], "perfkit watch train.py (process {})"),
        (["/lib/ipykernel_launcher.py", "-f", "kernel.json"], "a notebook (process {})"),
        (["/bin/perfkit", "\x1b[2Jrun"], "perfkit [2Jrun (process {})"),
        (["/bin/perfkit", "watch", "caf\udce9.py"], "perfkit watch caf?.py (process {})"),
    ],
)
def test_whoever_waits_is_told_for_whom(monkeypatch, tmp_path, command, who):
    monkeypatch.setenv("PERFKIT_LOCKS", str(tmp_path))
    monkeypatch.setattr(sys, "argv", command)
    assert told_while_waiting() == [f"{who.format(os.getpid())} uses the cores"]


def test_a_run_that_does_not_say_who_it_is_is_waited_for_all_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("PERFKIT_LOCKS", str(tmp_path))
    (tmp_path / "cores.holder").mkdir()
    assert told_while_waiting() == ["another run uses the cores"]


def test_a_folder_that_another_user_has_made_is_one_error_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.delenv("PERFKIT_LOCKS")
    monkeypatch.setattr(locks, "lock_folder", lambda: tmp_path)
    with device_lock("cpu"):
        pass
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PerfkitError, match="belongs to another user. Set PERFKIT_LOCKS"), device_lock("cpu"):
        pytest.fail("whoever owns the folder could have any file written")
    monkeypatch.setenv("PERFKIT_LOCKS", str(tmp_path))
    with device_lock("cpu"):
        pass


def test_a_folder_that_a_variable_names_can_be_shared_by_several_users(monkeypatch, tmp_path):
    """Whatever the umask: else the second user is told to name a folder, which they did."""
    shared = tmp_path / "made" / "locks"
    monkeypatch.setenv("PERFKIT_LOCKS", str(shared))
    umask = os.umask(0o027)
    try:
        with device_lock("cpu"):
            modes = {
                file.name: oct(file.stat().st_mode & 0o7777) for file in (shared, *shared.glob("*.lock"))
            }
            assert (shared / "cores.holder").is_file()
    finally:
        os.umask(umask)
    assert modes == {"locks": "0o1777", "cores.lock": "0o666"}
    assert not (shared / "cores.holder").exists(), "the next user could not write to it"
    shared.chmod(0o700)
    with device_lock("cpu"):
        assert shared.stat().st_mode & 0o7777 == 0o700, "a folder that is there already is left as it is"


def test_locks_that_cannot_be_written_are_one_error_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("PERFKIT_LOCKS", str(tmp_path))

    def denied(lock, timeout):
        raise PermissionError(13, "Permission denied", "cores.lock")

    monkeypatch.setattr(locks.filelock.FileLock, "acquire", denied)
    with (
        pytest.raises(PerfkitError, match=r"cores.lock: Permission denied. Set PERFKIT_LOCKS"),
        device_lock("cpu"),
    ):
        pytest.fail("nothing is locked")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERFKIT_LOCKS", str(tmp_path / "file"))
    with pytest.raises(PerfkitError, match="File exists"), device_lock("cpu"):
        pytest.fail("nothing is locked")
