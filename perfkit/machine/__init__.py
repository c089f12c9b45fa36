"""What this computer is: folders, cores, GPUs, devices, facts, conditions, check-up. Never imports torch."""

from perfkit.machine.computer import (
    cache_folder,
    checkout,
    data_folder,
    describe,
    facts,
    import_path,
    runs_folder,
    write_atomically,
)
from perfkit.machine.cores import (
    OtherPrograms,
    Program,
    cpu_times,
    free_memory_bytes,
    members,
    quality_warnings,
    read_conditions,
    resident_bytes,
    taken_share,
    usable_cores,
)
from perfkit.machine.devices import accelerators, check_device, compiler_problem
from perfkit.machine.doctor import Check, checkup
from perfkit.machine.gpus import free_gpu_bytes, process_tree, sample_utilization, taken_gpu_share

__all__ = [
    "Check",
    "OtherPrograms",
    "Program",
    "accelerators",
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
