"""Exceptions and exit codes in words: kind, place and remedy."""

import os
import signal
from pathlib import Path

import pytest
import torch

import perfkit
from perfkit import export, prefetch, train
from perfkit.errors import InvalidValue
from perfkit.worker.failures import as_error, explain, explain_exit, is_program, is_users
from tests.support import toy

PACKAGE = Path(perfkit.__file__).parent


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (MemoryError(), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"), "out of memory"),
        (OSError("[Errno 12] Cannot allocate memory"), "out of memory"),
        (
            RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronous"),
            "out of memory",
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), "out of memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "out of memory"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "out of memory"),
        (RuntimeError("unable to write to shared memory of a DataLoader"), "shared memory is full"),
        (RuntimeError("DataLoader worker (pid 3) exited unexpectedly"), "a loader worker died"),
        (ValueError("what a workload raises"), "exception"),
    ],
)
def test_an_exception_has_a_kind_a_place_and_a_remedy(problem, kind):
    with pytest.raises(type(problem)) as caught:
        raise problem
    failure = explain(caught.value)
    assert failure.kind == kind
    assert failure.remedy
    assert "test_failures.py:" in failure.what


def test_an_error_of_our_own_keeps_its_words():
    error = as_error(explain(InvalidValue("wrong", "right")))
    assert (error.kind, str(error)) == ("InvalidValue", "wrong. right")


def test_the_line_of_a_loader_worker_is_read_from_its_traceback():
    text = f"""Caught ValueError in DataLoader worker process 0.
Traceback (most recent call last):
  File "{torch.__file__}", line 12, in fetch
  File "{toy.__file__}", line 34, in __getitem__
  File "{PACKAGE}/worker/loader.py", line 56, in __getitems__
ValueError: sample 7 is broken"""
    failure = explain(ValueError(text))
    assert failure.kind == "the data set raised in a loader worker"
    assert failure.what.endswith("ValueError: sample 7 is broken (toy.py:34)")


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (-signal.SIGKILL, "out of memory", "was killed"),
        (-signal.SIGBUS, "failed", "shared memory is full"),
        (-signal.SIGSEGV, "failed", "SIGSEGV (last line of its log: a line)"),
        (3, "failed", "exit status 3"),
    ],
)
def test_an_exit_code_has_a_kind_and_a_remedy(code, kind, words):
    failure = explain_exit(code, "a line")
    assert (failure.kind, words in failure.what, bool(failure.remedy)) == (kind, True, True)


def test_code_of_the_user_is_told_from_ours_by_folder_not_by_name():
    """A clone in a folder called perfkit, or a workload in one, is still the user's."""
    for file in ("/home/me/perfkit/my_workload.py", toy.__file__, f"{PACKAGE}/workloads/photos.py"):
        assert is_users(file), file
    for file in (f"{PACKAGE}/worker/session.py", torch.__file__, os.__file__, "<frozen importlib>"):
        assert not is_users(file), file
    files = [module.__file__ for module in (train, prefetch, export)]
    assert [is_program(str(file)) for file in files] == [True, True, False]
