"""What this computer is: folders, cores, GPUs, devices, facts, conditions, check-up. Never imports torch."""

from perfkit.machine.computer import (
    cache_folder,
    checkout,
    data_folder,
    describe,
    facts,
    runs_folder,
    write_atomically,
)
from perfkit.machine.cores import cpu_times, read_conditions, taken_share, usable_cores
from perfkit.machine.devices import check_device, compiler_problem
from perfkit.machine.doctor import Check, checkup

__all__ = [
    "Check",
    "cache_folder",
    "check_device",
    "checkout",
    "checkup",
    "compiler_problem",
    "cpu_times",
    "data_folder",
    "describe",
    "facts",
    "read_conditions",
    "runs_folder",
    "taken_share",
    "usable_cores",
    "write_atomically",
]
