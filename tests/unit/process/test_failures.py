"""Exceptions and exit codes in words: kind, place and remedy."""

import os
import pickle
import signal
from pathlib import Path

import pytest
import torch

import perfkit
from perfkit.errors import InvalidValue, OutOfMemory, RunFailed, TrainingRaised, WorkloadError
from perfkit.process.failures import explain, explain_exit, is_users
from tests.support import toy

PACKAGE = Path(perfkit.__file__).parent


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (MemoryError(), OutOfMemory),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"), OutOfMemory),
        (OSError("[Errno 12] Cannot allocate memory"), OutOfMemory),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), OutOfMemory),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), OutOfMemory),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), OutOfMemory),
        (RuntimeError("Triton Error [CUDA]: out of memory"), OutOfMemory),
        (RuntimeError("unable to write to shared memory of a DataLoader"), RunFailed),
        (RuntimeError("DataLoader worker (pid 3) exited unexpectedly"), RunFailed),
        (ValueError("what a workload raises"), TrainingRaised),
    ],
)
def test_an_exception_has_a_kind_a_place_and_a_remedy(problem, kind):
    with pytest.raises(type(problem)) as caught:
        raise problem
    failure = explain(caught.value)
    assert type(failure) is kind
    assert failure.remedy
    assert "test_failures.py:" in failure.what


@pytest.mark.parametrize("kind", [InvalidValue, WorkloadError, RunFailed])
def test_an_error_of_our_own_keeps_its_words_and_its_kind(kind):
    failure = pickle.loads(pickle.dumps(explain(kind("wrong", "right"))))
    told = failure.given or failure
    assert (type(told), told.what, told.remedy) == (kind, "wrong", "right")


def test_a_signal_is_named_with_a_remedy():
    full, crashed = (explain_exit(-code, "a line") for code in (signal.SIGBUS, signal.SIGSEGV))
    assert isinstance(explain_exit(-signal.SIGKILL), OutOfMemory) and not isinstance(full, OutOfMemory)
    assert explain_exit(-signal.SIGKILL, who="train.py").what.startswith("train.py was killed")
    assert explain_exit(3, who="train.py").what == "train.py ended with exit status 3"
    assert "shared memory is full" in full.what and "/dev/shm" in full.remedy
    assert "SIGSEGV (last line of its log: a line)" in crashed.what and crashed.remedy
    assert "was ended by signal 35" in explain_exit(-35).what, "a real-time signal has no name"


def test_code_of_the_user_is_told_from_ours_by_folder_not_by_name():
    """A clone in a folder called perfkit, or a workload in one, is still the user's."""
    for file in ("/home/me/perfkit/my_workload.py", toy.__file__, f"{PACKAGE}/workloads/photos.py"):
        assert is_users(file), file
    for file in (f"{PACKAGE}/worker/session.py", torch.__file__, os.__file__, "<frozen importlib>"):
        assert not is_users(file), file
