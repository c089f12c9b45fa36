"""The machine: folders, cores, fingerprint, devices, compiler, and the doctor. torch is never imported."""

from perfkit.machine.checks import Check, doctor
from perfkit.machine.cores import core_report, usable_cores
from perfkit.machine.devices import (
    DeviceFacts,
    check_device,
    compiler_problem,
    default_device,
    device_facts,
    has_compiler,
)
from perfkit.machine.disturbances import conditions, doubts
from perfkit.machine.fingerprint import describe_machine, machine
from perfkit.machine.folders import cache_folder, data_folder, runs_folder
from perfkit.machine.gpus import nvml

__all__ = [
    "Check",
    "DeviceFacts",
    "cache_folder",
    "check_device",
    "compiler_problem",
    "conditions",
    "core_report",
    "data_folder",
    "default_device",
    "describe_machine",
    "device_facts",
    "doctor",
    "doubts",
    "has_compiler",
    "machine",
    "nvml",
    "runs_folder",
    "usable_cores",
]
