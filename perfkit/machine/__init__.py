"""What this computer is: folders, cores, GPUs, devices, facts, conditions, check-up. Never imports torch."""

from perfkit.machine.conditions import CpuTimes, cpu_times, quality_warnings, read_conditions
from perfkit.machine.cores import usable_cores
from perfkit.machine.devices import check_device, compiler_problem
from perfkit.machine.doctor import Check, checkup
from perfkit.machine.fingerprint import describe, facts
from perfkit.machine.folders import cache_folder, data_folder, runs_folder, write_atomically
from perfkit.machine.gpus import process_tree, sample_utilization

__all__ = [
    "Check", "CpuTimes", "cache_folder", "check_device", "checkup", "compiler_problem", "cpu_times",
    "data_folder", "describe", "facts", "process_tree", "quality_warnings", "read_conditions", "runs_folder",
    "sample_utilization", "usable_cores", "write_atomically",
]  # fmt: skip
