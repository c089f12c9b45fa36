"""Commands that measure a ladder and read back what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfkit.cli import app as cli
from perfkit.errors import InvalidValue
from perfkit.results import recordings
from perfkit.results.run import Run, document, summary
from perfkit.results.store import RunStore
from perfkit.show import html, tables, tables_history, terminal
from perfkit.studies import ladder as ladders
from perfkit.studies import plan as plans
from perfkit.studies.plan import Plan


@cli.command(cli.MEASURE)
def run(
    training: cli.Recipe,
    output: cli.Output,
    stages: cli.Stages = None,
    timeout: Annotated[float | None, typer.Option(help="seconds for one stage")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="processes that train together")] = 1,
    report: Annotated[Path | None, typer.Option(help="write a one-file HTML report here")] = None,
    record: Annotated[Path | None, typer.Option(help="write a recording here, to ship or to send")] = None,
) -> None:
    """Measures the stages of a ladder, each against the one before and against the baseline."""
    settings = training.switches() | ({"ranks": ranks} if ranks > 1 else {})
    plan = training.plan(cli.names(stages), settings=settings, timeout_s=timeout)
    cli.check_writable(report, record)
    runs, stopped = _measure(plan)
    if not runs:
        raise KeyboardInterrupt
    if report:
        cli.write(report, html.session(runs, plans.scripts(runs)))
    if record:
        recordings.save(runs, record)
    output.show(tables.sections(runs), document(runs))
    if stopped:
        raise KeyboardInterrupt
    if any(run.status == "failed" for run in runs):
        raise typer.Exit(1)


def _measure(plan: Plan) -> tuple[list[Run], bool]:
    """The finished runs, and whether the person stopped it."""
    done: list[Run] = []
    with cli.study_progress() as bar:

        def show(progress: plans.Progress) -> None:
            bar(progress)
            if progress.run:
                done.append(progress.run)
                typer.echo(tables.one_line(progress.run), err=True)

        try:
            return ladders.measure_ladder(plan, RunStore(), on_progress=show), False
        except KeyboardInterrupt:
            return done, True


@cli.command(cli.MEASURE)
def runs(
    limit: Annotated[int, typer.Option(min=1, help="how many, newest first")] = 20,
    workload: Annotated[str | None, typer.Option(help="only of this workload")] = None,
) -> None:
    """Lists the stored runs, newest first."""
    store = RunStore()
    terminal.show([tables_history.stored(store.history(limit, workload))])
    for problem in store.problems:
        cli.complain(problem)


@cli.command(cli.MEASURE)
def show(
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="of a run, or its beginning; or recorded:NAME, or a recording.json"
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print it as JSON")] = False,
) -> None:
    """Prints one run (result, recipe, evidence, machine), or all runs of a recording."""
    if run_id.endswith(".json") or run_id.startswith(recordings.PREFIX):
        recording = recordings.find(run_id.removeprefix(recordings.PREFIX))
        contents = [recording.provenance.describe(), *tables.sections(recording.runs)]
        data = document(recording.runs)
    else:
        stored = RunStore().get(run_id)
        contents = [*tables.sections([stored]), tables.evidence_of(stored)]
        data = summary(stored) | {"machine": stored.machine}
    if as_json:
        cli.Output(Path("-")).write(data)
    else:
        terminal.show(contents)


@cli.command(cli.MEASURE)
def report(
    out: Annotated[Path, typer.Argument(help="the HTML file to write")],
    session: Annotated[str | None, typer.Option(help="of stored runs (default: the newest)")] = None,
) -> None:
    """Writes one self-contained HTML file of a stored session: to send to a colleague."""
    cli.check_writable(out)
    store = RunStore()
    chosen = session or next(iter(store.sessions()), None)
    runs = list(reversed(store.runs(limit=1000, session=chosen))) if chosen else []
    if not runs:
        raise InvalidValue(f"no stored session '{session or ''}'", "`perfkit runs` lists them")
    cli.write(out, html.session(runs, plans.scripts(runs)))
    typer.echo(f"wrote {out}: {len(runs)} stages of session {chosen}")
