"""What this computer is: folders, cores, GPUs, devices, facts, conditions, check-up. Never imports torch."""

from perfkit.machine.conditions import quality_warnings, read_conditions
from perfkit.machine.cores import free_memory_bytes, usable_cores
from perfkit.machine.devices import check_device, compiler_problem
from perfkit.machine.doctor import Check, checkup
from perfkit.machine.fingerprint import describe, facts
from perfkit.machine.folders import (
    cache_folder,
    checkout,
    data_folder,
    import_path,
    own_recordings_folder,
    runs_folder,
    write_atomically,
)
from perfkit.machine.gpus import free_gpu_bytes, process_tree, sample_utilization, taken_gpu_share
from perfkit.machine.others import (
    CpuTimes,
    OtherPrograms,
    Program,
    cpu_times,
    members,
    resident_bytes,
    taken_share,
)

__all__ = [
    "Check",
    "CpuTimes",
    "OtherPrograms",
    "Program",
    "cache_folder",
    "check_device",
    "checkout",
    "checkup",
    "compiler_problem",
    "cpu_times",
    "data_folder",
    "describe",
    "facts",
    "free_gpu_bytes",
    "free_memory_bytes",
    "import_path",
    "members",
    "own_recordings_folder",
    "process_tree",
    "quality_warnings",
    "read_conditions",
    "resident_bytes",
    "runs_folder",
    "sample_utilization",
    "taken_gpu_share",
    "taken_share",
    "usable_cores",
    "write_atomically",
]
