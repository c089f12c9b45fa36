"""`perfkit run`: measures a ladder."""

from dataclasses import replace
from typing import Annotated

import typer

from perfkit.cli import options
from perfkit.cli.show import show_session
from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.show import sentences
from perfkit.studies.climb import climb
from perfkit.studies.sources import Update


def run(
    training: options.RecipeOptions,
    output: options.OutputOptions,
    stages: options.Stages = None,
    keep: Annotated[str | None, typer.Option(help="stages to keep even if they are not faster: a,b")] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="keep every stage, faster or not")] = False,
    timeout: Annotated[float | None, typer.Option(help="seconds for one stage", min=1)] = None,
    budget: Annotated[float | None, typer.Option(help="seconds for the whole ladder", min=1)] = None,
    out: options.Out = None,
) -> None:
    """Climbs a ladder: each stage is measured on top of what was kept before, and kept if it is faster."""
    plan = training.plan(options.names(stages))
    plan = replace(
        plan.keeping(plan.ladder.stages if keep_all else options.names(keep) or ()), timeout_s=timeout
    )
    if budget:
        plan = replace(plan, rule=replace(plan.rule, limit_s=budget, noisy_limit_s=budget))
    options.check_writable(out, output.json_file, output.html_file)
    done: list[Run] = []

    def show(now: Update) -> None:
        if now.run:
            done.append(now.run)
            typer.echo(sentences.verdict(now.run), err=True)

    with options.stored() as store:
        with options.progress(show) as follow:
            try:
                runs, stopped = climb(plan, store, follow), False
            except KeyboardInterrupt:
                runs, stopped = done, True
        if not runs:
            raise KeyboardInterrupt
        if out and any(run.status != "cancelled" for run in runs):
            options.write(out, recordings.text(runs))
        show_session(runs, output, also=out)
        if stopped:
            raise KeyboardInterrupt
        if any(run.status == "failed" for run in runs):
            raise typer.Exit(1)
