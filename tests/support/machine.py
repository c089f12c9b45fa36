"""The machine of unit and contract tests: a fake, so that they pass on any.

It has everything; with PERFKIT_TEST_MACHINE=bare it has nothing: no 16-bit instructions, no glibc, no compiler.
A test that needs one of them asks for the `whole_machine`.
"""

import os
import platform

import pytest

from perfkit import machine
from perfkit.machine import cores, devices

WHOLE = {
    "id": "fake",
    "os": "Linux",
    "python": "3.11",
    "cpu": {
        "model": "Fake CPU",
        "cores_usable": 2,
        "cores_visible": 2,
        "flags": ["avx2", "avx512_bf16", "amx_bf16"],
    },
    "memory_bytes": 8 * machine.GIB,
    "gpus": [],
    "versions": {"torch": "2.15.0"},
    "shm_bytes": machine.GIB,
    "driver": None,
    "commit": None,
}
BARE = {**WHOLE, "id": "bare", "cpu": {**WHOLE["cpu"], "flags": []}}


def pretend(monkeypatch, facts):
    """This process has this machine until the test ends."""
    problem, libc = "", ("glibc", "2.39")
    if not facts["cpu"]["flags"]:
        problem, libc = "no compiler: install it", ("musl", "1.2")
    monkeypatch.setattr(machine, "facts", lambda: facts)
    monkeypatch.setattr(devices, "compiler_problem", lambda device: problem)
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    monkeypatch.setattr(cores, "_spent", dict)  # no other program runs there


@pytest.fixture(autouse=True)
def any_machine(monkeypatch):
    """What the machine is does not matter to a test that says nothing of it."""
    pretend(monkeypatch, BARE if os.environ.get("PERFKIT_TEST_MACHINE") == "bare" else WHOLE)


@pytest.fixture
def whole_machine(monkeypatch, any_machine):
    """A machine with 16-bit instructions, glibc and a compiler."""
    pretend(monkeypatch, WHOLE)
