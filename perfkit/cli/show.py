"""`perfkit show` and `perfkit runs`: reads back what was measured, and writes its report."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from perfkit.cli.options import OutputOptions, stored
from perfkit.errors import InvalidValue
from perfkit.results import Run, RunStore, recordings
from perfkit.results.documents import document, summary
from perfkit.show import sentences, tables, terminal
from perfkit.studies import staging


def runs(limit: Annotated[int, typer.Option(min=1, help="how many, newest first")] = 20) -> None:
    """Lists the stored runs, newest first."""
    with stored() as store:
        terminal.show([tables.stored(store.history(limit))])


def show(
    output: OutputOptions,
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
        show_session(recordings.find(name.removeprefix(recordings.PREFIX)), output)
        return
    with stored() as store:
        _show_stored(store, name, output)


def _show_stored(store: RunStore, name: str | None, output: OutputOptions) -> None:
    """Shows a session or a run from the store; without a name, the newest session that can be read."""
    if name is None:
        newest = store.history(limit=1) or store.history()
        if not newest:
            raise InvalidValue("no run is stored yet", "Measure some: perfkit run")
        name = newest[0].session
    if session := store.runs(name):
        show_session(session[::-1], output)
        return
    run = store.get(name)
    sections = [*tables.report([run]), tables.checks("Every check", run.mechanism)]
    output.deliver(sentences.run_name(run), sections, summary(run) | {"machine": run.machine})


def show_session(runs: list[Run], output: OutputOptions, out: Path | None = None) -> None:
    """Shows a session as its report, and writes it as a recording to `out`. Only a page has the scripts."""
    report = tables.report(runs, staging.scripts(runs) if output.html_file else None)
    recording = partial(recordings.content, runs)
    output.deliver(runs[0].workload_name, report, document(runs), out=out, content=recording)
