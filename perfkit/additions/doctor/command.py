"""`perfkit doctor`."""

import contextlib
from typing import Annotated

import typer

from perfkit import machine
from perfkit.additions.doctor import checkup, workshop
from perfkit.additions.doctor.noise import measure_noise, told
from perfkit.cli.options import OutputOptions, TrainingOptions, progress, stored
from perfkit.errors import InvalidValue
from perfkit.studies import staging


def doctor(
    training: TrainingOptions,
    output: OutputOptions,
    noise: Annotated[
        bool, typer.Option("--noise", help="also measure how much identical runs differ (minutes)")
    ] = False,
    room: Annotated[
        bool, typer.Option("--workshop", help="check whether it is ready for a workshop, in half a minute")
    ] = False,
    budget: Annotated[float | None, typer.Option(min=0, help="seconds for --noise (default: 300)")] = None,
) -> None:
    """Checks this machine: hardware, which stages can run here, what to fix; with --noise, its A/A noise.

    Verdicts take the noise into account, and do not report smaller effects. --workshop tells how busy this
    machine is, which chapters show n/a, and how long chapter 02 takes.
    """
    if budget is not None and not noise:
        raise InvalidValue("--budget limits only --noise", "Add --noise, or leave out --budget")
    plan = training.plan()
    with progress() as follow:
        checks = workshop.checks(plan, follow) if room else checkup.checkup()
    # A built-in workload declares what it offers; a workload that is named must be loaded.
    stages = staging.all_stages(staging.loaded(plan) if training.workload else plan.source())
    sections = checkup.sections(machine.describe(machine.facts()), checks, stages)
    record: dict[str, object] = {"checks": checks}
    with stored() if noise else contextlib.nullcontext() as store:
        if store:
            with progress() as follow:
                result = measure_noise(plan, store, 300.0 if budget is None else budget, follow)
            record["noise"] = store.spread(plan.subject.device).sd
            sections.append(told(plan.subject.device, store, result))
        is_red = any(check.status == "red" for check in checks)
        output.deliver("check of this machine", sections, record, verdict=1 if is_red else None)
