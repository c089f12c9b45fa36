"""The command that checks the machine."""

from typing import Annotated

import typer

from perfkit import machine
from perfkit.cli.options import Output, Training, progress
from perfkit.results import noise as noises
from perfkit.show import tables
from perfkit.studies import compare as comparing
from perfkit.studies import rungs


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
    plan = training.plan()
    checks = machine.checkup()
    stages = rungs.resolve(plan)[1]
    sections = tables.doctor(machine.describe(machine.facts()), checks, stages)
    document: dict[str, object] = {"checks": checks}
    if noise:
        with progress() as follow:
            result = comparing.measure_noise(plan, pairs, budget, progress=follow)
        bound = noises.load(plan.device)
        sections += tables.noise(result, plan.device, bound)
        document["noise"] = bound
    output.show("check of this machine", sections, document)
    if any(check.status == "problem" for check in checks):
        raise typer.Exit(1)
