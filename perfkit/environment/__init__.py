"""The machine: folders, cores, fingerprint, devices, compiler, and the doctor. torch is never imported."""

from perfkit.environment.checks import Check, doctor
from perfkit.environment.cores import core_report, usable_cores
from perfkit.environment.devices import (
    DeviceFacts,
    check_device,
    compiler_problem,
    default_device,
    device_facts,
    has_compiler,
)
from perfkit.environment.disturbances import conditions, doubts
from perfkit.environment.fingerprint import describe_machine, machine
from perfkit.environment.folders import cache_folder, data_folder, runs_folder
from perfkit.environment.gpus import nvml

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
