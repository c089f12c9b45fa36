"""Commands that measure a ladder, read back what was measured, and write the training program."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfkit import export as exports
from perfkit.cli.options import (
    Out,
    Output,
    Recipe,
    StageName,
    Stages,
    Training,
    check_writable,
    names,
    progress,
    stored,
    write,
)
from perfkit.errors import InvalidValue
from perfkit.results import recordings
from perfkit.results.run import Run, document, summary
from perfkit.results.store import RunStore
from perfkit.show import sentences, tables, terminal
from perfkit.studies import rungs
from perfkit.studies.rungs import climb
from perfkit.studies.sources import Update


def run(
    training: Recipe,
    output: Output,
    stages: Stages = None,
    keep: Annotated[str | None, typer.Option(help="stages to keep even if they are not faster: a,b")] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="keep every stage, faster or not")] = False,
    timeout: Annotated[float | None, typer.Option(help="seconds for one stage", min=1)] = None,
    out: Out = None,
) -> None:
    """Climbs a ladder: each stage is measured on top of what was kept so far, and kept if it is faster."""
    plan = training.plan(names(stages), timeout_s=timeout, keep=names(keep) or [], keep_all=keep_all)
    check_writable(out, output.json_file, output.html_file)
    done: list[Run] = []

    def show(now: Update) -> None:
        if now.run:
            done.append(now.run)
            typer.echo(sentences.verdict(now.run), err=True)

    with stored() as store:
        with progress(show) as follow:
            try:
                runs, stopped = climb(plan, store, follow), False
            except KeyboardInterrupt:
                runs, stopped = done, True
        if not runs:
            raise KeyboardInterrupt
        if out:
            write(out, recordings.text(runs))
        _show_session(runs, output, also=out)
        if stopped:
            raise KeyboardInterrupt
        if any(run.status == "failed" for run in runs):
            raise typer.Exit(1)


def _show_session(runs: list[Run], output: Output, also: Path | None = None) -> None:
    """A session as its report; the scripts are part of a page only."""
    scripts = rungs.scripts(runs) if output.html_file else None
    title = runs[0].workload.rpartition(":")[2]
    output.show(title, tables.sections(runs, scripts), document(runs), also)


def runs(limit: Annotated[int, typer.Option(min=1, help="how many, newest first")] = 20) -> None:
    """Lists the stored runs, newest first."""
    with stored() as store:
        terminal.show([tables.stored(store.history(limit))])


def show(
    output: Output,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="a run's id or its beginning, a session, recorded:NAME, a recording.json, or a "
            "gpu-NAME.zip of make gpu (default: the newest session)",
        ),
    ] = None,
) -> None:
    """Shows a run, a session or a recording; with --html it is a report to send to a colleague."""
    if name and (name.endswith(recordings.FILES) or name.startswith(recordings.PREFIX)):
        _show_session(recordings.find(name.removeprefix(recordings.PREFIX)), output)
        return
    with stored() as store:
        _show_stored(store, name, output)


def _show_stored(store: RunStore, name: str | None, output: Output) -> None:
    """A session or a run of the store; the newest session that can be read if no name is given."""
    if name is None:
        newest = store.history(limit=1) or store.history()
        if not newest:
            raise InvalidValue("no run is stored yet", "Measure some: perfkit run")
        name = newest[0].run.session
    if session := store.runs(name):
        _show_session(session[::-1], output)
        return
    run = store.get(name)
    sections = [*tables.sections([run]), tables.checks("Every check", run.mechanism)]
    output.show(sentences.name(run), sections, summary(run) | {"machine": run.machine})


def export(
    training: Recipe,
    stage: StageName = None,
    steps: Annotated[int, typer.Option(min=1, help="steps that the script trains")] = 8,
    out: Out = None,
) -> None:
    """Writes the standalone training script of a recipe; it does not need perfkit."""
    check_writable(out)
    plan = training.plan([stage or "baseline"], below=True)
    source = rungs.described(plan, load=True)
    recipe = rungs.acting(source).recipe
    options = source.description.options
    text = exports.script(recipe, plan.workload, options, plan.device, training.seed, steps)
    write(out or Path("-"), text)


def diff(stage: Annotated[str, typer.Argument(help="a stage, such as amp")], training: Training) -> None:
    """Shows what a stage changes in the training script: here, or on a GPU if it cannot act here."""
    title, text = rungs.stage_diff(rungs.described(training.plan([stage], below=True), load=True))
    sys.stdout.write(f"# {title}\n{text}")
