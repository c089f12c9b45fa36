"""Commands for scripts, and the check of the machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfkit import machine
from perfkit.cli import app as cli
from perfkit.errors import InvalidValue
from perfkit.results.store import RunStore
from perfkit.show import tables_studies, terminal
from perfkit.studies import ladder as ladders
from perfkit.studies import plan as plans
from perfkit.studies import scaling


@cli.command(cli.SCRIPT)
def export(
    training: cli.Stage,
    steps: Annotated[int, typer.Option(min=1, help="steps that the script trains")] = 8,
    run_id: Annotated[str | None, typer.Option("--run", help="the recipe of this stored run instead")] = None,
) -> None:
    """Prints the standalone training script of a recipe; it does not need perfkit."""
    if run_id:
        text = next(iter(plans.scripts([RunStore().get(run_id)]).values()), None)
        if text is None:
            why = "It was not measured, or it was a script already (see perfkit show ID)"
            raise InvalidValue(f"run '{run_id}' has no recipe to export", why)
    else:
        name = training.stage or "baseline"
        plan = training.plan([name], settings=training.switches(), below=True)
        described, stages = ladders.resolve(plan)
        if stages[-1].reason:
            raise InvalidValue(f"stage '{name}' does not apply here: {stages[-1].reason}", "Choose another")
        text = plans.script(stages[-1].recipe, described, plan.device, training.seed, steps)
    sys.stdout.write(text)


@cli.command(cli.SCRIPT)
def diff(stage: Annotated[str, typer.Argument(help="an optimization")], training: cli.Training) -> None:
    """Shows what a stage changes in the training script: here, and on a GPU if that differs."""
    for title, text in ladders.stage_diffs(training.plan([stage], below=True)):
        sys.stdout.write(f"# {title}\n{text}")


@cli.command(cli.SCRIPT)
def torchrun(
    ranks: Annotated[int, typer.Option(min=2, help="processes, on all machines together")],
    nodes: Annotated[int, typer.Option(min=1, help="machines")] = 1,
    rendezvous: Annotated[str, typer.Option(help="HOST:PORT of one of them")] = "HOST:29400",
    script: Annotated[Path, typer.Option(help="an exported script: perfkit export --set ranks=…")] = Path(
        "train.py"
    ),
) -> None:
    """Prints the command that starts an exported script on a cluster."""
    typer.echo(scaling.torchrun(str(script), ranks, nodes, rendezvous))


@cli.command(cli.MACHINE)
def doctor() -> None:
    """Checks this machine: hardware, which stages can run here, what to fix."""
    checks = machine.checkup()
    about = machine.describe(machine.facts())
    terminal.show(tables_studies.doctor(about, checks, ladders.resolve(plans.plan())[1]))
    if any(check.status == "problem" for check in checks):
        raise typer.Exit(1)
