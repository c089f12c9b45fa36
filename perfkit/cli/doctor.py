"""The check of this machine. Importing torch takes most of its time: all else is imported meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer

from perfkit import machine
from perfkit.cli.options import Output, Training, progress
from perfkit.machine import devices


def doctor(
    training: Training,
    output: Output,
    noise: Annotated[
        bool, typer.Option("--noise", help="also measure how far apart identical runs come out (minutes)")
    ] = False,
    pairs: Annotated[int, typer.Option(min=2, max=100, help="pairs of processes for --noise")] = 10,
    budget: Annotated[float, typer.Option(min=0, help="seconds of measuring for each such pair")] = 30.0,
) -> None:
    """Checks this machine: hardware, which stages can run here, what to fix; with --noise, its A/A noise.

    Verdicts take the noise into account: a smaller effect is not called an effect.
    """
    with ThreadPoolExecutor() as pool:
        checking = pool.submit(devices.checkup)
        from perfkit.results.store import RunStore
        from perfkit.show import tables
        from perfkit.studies import compare, rungs
    checks, plan = checking.result(), training.plan()
    # What is built in declares what it offers; a workload that is named has to be loaded.
    stages = rungs.planned(plan, load=bool(training.workload))
    sections = tables.doctor(machine.describe(machine.facts()), checks, stages)
    record: dict[str, object] = {"checks": checks}
    if noise:
        with progress() as follow:
            result = compare.measure_noise(plan, pairs, budget, progress=follow)
        record["noise"] = bound = RunStore().noise(plan.device)
        sections.append(f"A/A noise of {plan.device}: {bound or 0:.2%}, from {result.pairs} pairs")
    output.show("check of this machine", sections, record)
    if any(check.status == "problem" for check in checks):
        raise typer.Exit(1)
