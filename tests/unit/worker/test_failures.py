"""Exceptions and exit codes in words: kind, place and remedy."""

import os
import signal
import sysconfig
from pathlib import Path

import pytest
import torch

import perfkit
from perfkit import export, prefetch, train
from perfkit.errors import InvalidValue
from perfkit.worker.failures import as_error, explain, explain_exit, is_program, is_users
from tests.support import toy

PACKAGE = Path(perfkit.__file__).parent


def raised(problem: BaseException) -> BaseException:
    try:
        raise problem
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (MemoryError(), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"), "out of memory"),
        (OSError("[Errno 12] Cannot allocate memory"), "out of memory"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronous"), "out of memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), "out of memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "out of memory"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "out of memory"),
        (RuntimeError("unable to write to shared memory of a DataLoader"), "shared memory is full"),
        (RuntimeError("DataLoader worker (pid 3) exited unexpectedly"), "a loader worker died"),
        (ValueError("Caught ValueError in DataLoader worker process 0."),
         "the data set raised in a loader worker"),
        (ValueError("what a workload raises"), "exception"),
    ],
)  # fmt: skip
def test_an_exception_has_a_kind_and_a_remedy(problem: BaseException, kind: str) -> None:
    failure = explain(raised(problem))
    assert failure.kind == kind
    assert failure.remedy
    assert "test_failures.py:" in failure.what


def test_an_error_of_our_own_keeps_its_words() -> None:
    failure = explain(InvalidValue("wrong", "right"))
    assert (failure.kind, failure.what, failure.remedy) == ("InvalidValue", "wrong", "right")
    assert as_error(failure).kind == "InvalidValue"
    assert str(as_error(failure)) == "wrong. right"


def test_the_line_of_a_loader_worker_is_read_from_its_traceback() -> None:
    text = f"""Caught ValueError in DataLoader worker process 0.
Traceback (most recent call last):
  File "{torch.__file__}", line 12, in fetch
  File "{toy.__file__}", line 34, in __getitem__
  File "{PACKAGE}/worker/loader.py", line 56, in __getitems__
ValueError: sample 7 is broken"""
    failure = explain(ValueError(text))
    assert failure.what.endswith("ValueError: sample 7 is broken (toy.py:34)")


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (-signal.SIGKILL, "out of memory", "was killed"),
        (-signal.SIGBUS, "failed", "shared memory is full"),
        (-signal.SIGSEGV, "failed", "SIGSEGV"),
        (3, "failed", "exit status 3"),
        (None, "failed", "exit status"),
    ],
)
def test_an_exit_code_has_a_kind_and_a_remedy(code: int | None, kind: str, words: str) -> None:
    failure = explain_exit(code, "the last line")
    assert failure.kind == kind
    assert words in failure.what
    assert failure.remedy


def test_code_of_the_user_is_told_from_ours_by_folder_not_by_name() -> None:
    """A clone in a folder called perfkit, or a workload in one, is still the user's."""
    assert is_users("/home/me/perfkit/my_workload.py")
    assert is_users(str(PACKAGE.parent / "tests" / "support" / "toy.py"))
    assert is_users(str(PACKAGE / "workloads" / "photos.py"))
    for file in (PACKAGE / "worker" / "session.py", torch.__file__, os.__file__, "<frozen importlib>"):
        assert not is_users(str(file)), file
    assert not is_users(f"{sysconfig.get_path('stdlib')}/threading.py")


def test_the_training_program_is_all_of_its_files() -> None:
    assert is_program(train.__file__)
    assert is_program(prefetch.__file__)
    assert not is_program(export.__file__)
