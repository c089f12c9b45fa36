"""Everything here runs with a double of CUDA, in a test run of its own: `make double`."""

import importlib
import os
import sys

import pytest

from perfkit import machine
from perfkit.machine import devices, gpus
from tests.support import cuda_lines, double

CACHES = (gpus._nvml, machine.facts, devices.ask_torch)


@pytest.fixture(scope="session")
def _zygotes_are_forked():
    """They are not: each has to find the double when it imports torch."""


@pytest.fixture(scope="session", autouse=True)
def cuda(tmp_path_factory):
    """Processes that are started have the double, and this one has NVML's; all note the lines for CUDA that run."""
    variables = {**double.environment(), cuda_lines.VARIABLE: str(tmp_path_factory.mktemp("lines") / "ran")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.syspath_prepend(variables["PYTHONPATH"].split(os.pathsep)[0])
        patch.delitem(sys.modules, "pynvml", raising=False)
        patch.setitem(sys.modules, "pynvml", importlib.import_module("pynvml"))
        for cached in CACHES:
            cached.cache_clear()
        cuda_lines.trace()
        yield variables[cuda_lines.VARIABLE]
    sys.settrace(None)
    for cached in CACHES:
        cached.cache_clear()


@pytest.fixture
def clock(here):
    """The double in this process, by a clock that only waiting moves."""
    now = [100.0]
    here.clock, here.sleep = lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds)
    return now


@pytest.fixture
def here():
    """The double in this process."""
    with double.installed() as state:
        yield state
