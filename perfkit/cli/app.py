"""The command line: the same functions from a shell. Exit codes: 0 done, 1 failed, 2 misused, 130 stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfkit.errors import InvalidValue, PerfkitError

if TYPE_CHECKING:
    from perfkit.results.run import Run
    from perfkit.studies.engine import Plan
    from perfkit.studies.inspect import Where

app: typer.Typer = typer.Typer(
    name="perfkit",
    help="A training script, a set of switches, and a measured, honest difference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Workload = Annotated[
    str | None, typer.Option(help="cifar_resnet18, photos, or your own as package.module:name")
]
PresetName = Annotated[str | None, typer.Option("--preset", help="smoke, quick or paper")]
Stages = Annotated[str | None, typer.Option(help="optimizations in their order: a,b,c (default: the ladder)")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="switch=value, from the baseline up; repeatable")
]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="name=value for the workload; repeatable")
]
Device = Annotated[
    str | None, typer.Option(help="cuda, mps or cpu (default: the first of these that is there)")
]
Seed = Annotated[int, typer.Option(help="of weights, order and augmentation")]


@app.callback()
def _root() -> None:
    signal.signal(signal.SIGTERM, lambda *_: _raise_interrupt())


def _raise_interrupt() -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _errors_in_words() -> Iterator[None]:
    """Turns what a person can act on into one line and an exit code."""
    try:
        yield
    except InvalidValue as problem:
        _complain(problem)
        raise typer.Exit(2) from None
    except PerfkitError as problem:
        _complain(problem)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("stopped; what was finished is kept (perfkit runs)", err=True)
        raise typer.Exit(130) from None
    except OSError as problem:
        _complain(
            f"{problem.strerror or problem}: {problem.filename or ''}. Check path, permission, free space"
        )
        raise typer.Exit(1) from None


def _complain(problem: object) -> None:
    typer.echo(f"perfkit: {problem}", err=True)


@app.command()
def doctor() -> None:
    """What this machine has, which stages will be real, and what to mend."""
    from rich.console import Console
    from rich.table import Table

    from perfkit import machine

    with _errors_in_words():
        checks = machine.checkup()
        tables = Table(title=machine.describe(machine.facts()), title_justify="left")
        for column in ("", "what", "found", "what to do"):
            tables.add_column(column, overflow="fold")
        signs = {"ok": "[green]ok[/]", "warning": "[yellow]note[/]", "problem": "[red]problem[/]"}
        for check in checks:
            tables.add_row(signs[check.status], check.name, check.detail, check.remedy)
        Console().print(tables)
        _print_stages()
        if any(check.status == "problem" for check in checks):
            raise typer.Exit(1)


def _print_stages() -> None:
    from perfkit.studies import engine

    for stage in engine.resolve(engine.plan())[1]:
        typer.echo(f"  {stage.title:<18} {'n/a: ' + stage.reason if stage.reason else 'will be measured'}")


@app.command()
def run(  # noqa: PLR0913, PLR0917  (an option each)
    workload: Workload = None,
    preset: PresetName = None,
    stages: Stages = None,
    settings: Settings = None,
    option: Options = None,
    device: Device = None,
    seed: Seed = 0,
    timeout: Annotated[float | None, typer.Option(help="seconds for one stage")] = None,
    ranks: Annotated[int, typer.Option(min=1, help="processes that train together, on all machines")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="machines; run the same command on each")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="which of them this is")] = 0,
    rendezvous: Annotated[str, typer.Option(help="HOST:PORT of machine 0, free ports from there on")] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the results there, - for stdout")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="write a one-file HTML report there")] = None,
    record: Annotated[Path | None, typer.Option(help="write a recording there, to ship or to send")] = None,
) -> None:
    """Measures the stages of a ladder, each against the one before and against the baseline."""
    from perfkit.results.store import save_recording
    from perfkit.show import terminal
    from perfkit.studies import engine

    with _errors_in_words():
        together = [f"ranks={ranks}"] if ranks > 1 else []
        plan = _plan(workload, preset, stages, [*(settings or []), *together], option, device, seed, timeout)
        plan = engine.spread(plan, nodes, node_rank, rendezvous)
        for path in (json_file, report, record):
            _check_writable(path)
        runs, stopped = _climb(plan)
        if not runs:
            raise KeyboardInterrupt
        terminal.print_session(runs, to_stderr=str(json_file) == "-")
        _write_outputs(runs, json_file, report)
        if record:
            save_recording(runs, record)
        if stopped:
            raise KeyboardInterrupt
        if any(run.status == "failed" for run in runs):
            raise typer.Exit(1)


def _plan(
    workload: str | None,
    preset: str | None,
    stages: str | None,
    settings: list[str] | None,
    options: list[str] | None,
    device: str | None,
    seed: int = 0,
    timeout: float | None = None,
    below: bool = False,
) -> Plan:
    from perfkit.program.recipe import parse_settings
    from perfkit.studies import engine

    names = [name.strip() for name in stages.split(",") if name.strip()] if stages is not None else None
    return engine.plan(
        workload,
        preset,
        names,
        parse_settings(settings or []),
        device,
        _options(options or []),
        below,
        seed,
        timeout,
    )


def _options(texts: list[str]) -> dict[str, Any]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidValue(f"cannot read the option '{text}'", "Write name=value, such as image_size=64")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _where(
    preset: str | None, settings: list[str] | None, option: list[str] | None, device: str | None
) -> Where:
    """What `perfkit.profile` and its like are asked, from the options of a command."""
    from perfkit.program.recipe import parse_settings

    changed, given = parse_settings(settings or []), _options(option or [])
    return {"preset": preset, "settings": changed, "options": given, "device": device}


def _check_writable(path: Path | None) -> None:
    """Before hours are spent: can the result be written at all?"""
    if (
        path
        and str(path) != "-"
        and not (path.absolute().parent.is_dir() and os.access(path.absolute().parent, os.W_OK))
    ):
        raise InvalidValue(
            f"cannot write {path}", "Give a path in a folder that exists and may be written to"
        )


def _climb(plan: Plan) -> tuple[list[Run], bool]:
    """The finished runs, and whether the person stopped it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from perfkit.results.store import RunStore
    from perfkit.show import terminal
    from perfkit.studies import engine

    done: list[Run] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)

        def show(progress: engine.Progress) -> None:
            bar.update(task, completed=progress.fraction, description=f"{progress.stage}: {progress.phase}")
            if progress.run:
                done.append(progress.run)
                bar.console.print(terminal.one_line(progress.run), highlight=False, markup=False)

        try:
            return engine.climb(plan, RunStore(), show), False
        except KeyboardInterrupt:
            return done, True


def _write_outputs(runs: list[Run], json_file: Path | None, report: Path | None) -> None:
    from perfkit.results.run import document

    if json_file:
        _write(json_file, json.dumps(document(runs), indent=1))
    if report:
        from perfkit.show import html as reports
        from perfkit.studies import engine

        _write(report, reports.html(runs, engine.scripts(runs)))


def _write(path: Path, text: str) -> None:
    from perfkit.machine import write_atomically

    if str(path) == "-":
        sys.stdout.write(text + "\n")
    else:
        write_atomically(path, text.encode())


@app.command()
def export(
    stage: Annotated[str | None, typer.Option(help="the recipe of this rung of the ladder")] = None,
    workload: Workload = None,
    preset: PresetName = None,
    settings: Settings = None,
    option: Options = None,
    device: Device = None,
    seed: Seed = 0,
    steps: Annotated[int, typer.Option(min=1, help="steps that the script trains")] = 8,
    run_id: Annotated[str | None, typer.Option("--run", help="the recipe of this stored run instead")] = None,
) -> None:
    """Prints the standalone training script of a recipe; it needs no perfkit."""
    from perfkit.studies import engine

    with _errors_in_words():
        if run_id:
            from perfkit.results.store import RunStore

            text = next(iter(engine.scripts([RunStore().get(run_id)]).values()), None)
            if text is None:
                why = "It was not measured, or was of a script already (perfkit show ID tells)"
                raise InvalidValue(f"run '{run_id}' has no recipe to export", why)
            sys.stdout.write(text)
            return
        plan = _plan(workload, preset, stage or "baseline", settings, option, device, seed, below=True)
        described, stages = engine.resolve(plan)
        if stages[-1].reason:
            raise InvalidValue(
                f"stage '{stages[-1].name}' does not apply here: {stages[-1].reason}", "Choose another"
            )
        sys.stdout.write(engine.script(stages[-1].recipe, described, plan.device, seed, steps))


@app.command()
def diff(
    stage: Annotated[str, typer.Argument(help="an optimization")],
    workload: Workload = None,
    preset: PresetName = None,
    option: Options = None,
    device: Device = None,
) -> None:
    """Shows what a stage changes in the training script."""
    from perfkit.studies import engine

    with _errors_in_words():
        plan = _plan(workload, preset, stage, None, option, device, below=True)
        text = engine.stage_diff(plan)
        sys.stdout.write(text)


@app.command()
def runs(
    limit: Annotated[int, typer.Option(min=1, help="how many, newest first")] = 20,
    workload: Workload = None,
) -> None:
    """Lists the runs in the store, newest first."""
    from perfkit.results.store import RunStore
    from perfkit.show import tables

    with _errors_in_words():
        store = RunStore()
        for found in store.list(limit=limit, workload=workload):
            name = found.workload.rpartition(":")[2]
            rate = tables.row(found)[1] if found.status == "ok" else found.status
            typer.echo(f"{found.id}  {found.session}  {found.preset:<6} {name:<16} {found.title:<18} {rate}")
        for problem in store.problems:
            _complain(problem)


@app.command()
def show(
    run_id: Annotated[str, typer.Argument(metavar="ID", help="of a run, or its beginning")],
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Prints one run: result, recipe, mechanism, machine."""
    from rich.console import Console

    from perfkit.results.run import summary
    from perfkit.results.store import RunStore
    from perfkit.show import terminal

    with _errors_in_words():
        found = RunStore().get(run_id)
        if as_json:
            sys.stdout.write(json.dumps(summary(found) | {"machine": found.machine}, indent=1) + "\n")
            return
        terminal.print_session([found])
        console = Console(highlight=False)
        for mechanism in found.mechanism:
            console.print(
                f"  {'✓' if mechanism.ok else '✗'} {mechanism.switch}: {mechanism.evidence}", markup=False
            )
