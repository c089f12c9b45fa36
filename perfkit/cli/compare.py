"""`perfkit compare`, `noise`, `parity` and `report`: results that one can stand behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfkit.cli import app as cli
from perfkit.errors import InvalidValue

if TYPE_CHECKING:
    from perfkit.results.comparison import Comparison
    from perfkit.studies.engine import Plan

Budget = Annotated[float, typer.Option(help="seconds of rounds, over all pairs of processes", min=0)]


def _with_bar(work: Any) -> Any:
    """Runs `work(show)` behind a progress bar; `show` takes a phase and a fraction."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        return work(lambda phase, fraction: bar.update(task, completed=fraction, description=phase))


def _compared(plan: Plan, a: str, b: str, budget: float, precision: float) -> Comparison:
    from perfkit.studies import compare as comparing

    sides = comparing.sides(a, b, plan)
    found: Comparison = _with_bar(
        lambda show: comparing.compare(
            *sides, plan, budget, precision, on_progress=lambda p: show(f"{p.stage}: {p.phase}", p.fraction)
        )
    )
    return found


@cli.app.command()
def compare(
    a: Annotated[
        str, typer.Argument(help="a stage, settings (workers=2,amp=bf16), a run's id, or an exported script")
    ],
    b: Annotated[str, typer.Argument(help="the same; it is compared with A")],
    fail_if_slower: Annotated[
        str | None, typer.Option(help="exit with 1 if B is slower than A by more than this, such as 3%")
    ] = None,
    stored: Annotated[
        bool, typer.Option("--stored", help="two stored runs as they are, without measuring")
    ] = False,
    budget: Budget = 90.0,
    precision: Annotated[float, typer.Option(help="half width of the interval to reach")] = 0.02,
    workload: cli.Workload = None,
    preset: cli.PresetName = None,
    option: cli.Options = None,
    device: cli.Device = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the result there, - for stdout")
    ] = None,
) -> None:
    """Is B faster than A? Both alive, blocks in turn in random order, until the interval is narrow enough."""
    import msgspec

    from perfkit.results.store import RunStore
    from perfkit.studies import compare as comparing

    with cli._errors_in_words():
        limit = _percent(fail_if_slower)
        cli._check_writable(json_file)
        if stored:
            found = comparing.compare_stored(RunStore().get(a), RunStore().get(b))
        else:
            plan = cli._plan(workload, preset, None, None, option, device)
            found = _compared(plan, a, b, budget, precision)
        typer.echo(found.describe(), err=str(json_file) == "-")
        if json_file:
            document = {
                "schema": 1, "a": found.a.recipe, "b": found.b.recipe, "rounds": found.rounds,
                "pairs": found.pairs,
                "interleaved": found.interleaved, "noise": found.noise, **msgspec.to_builtins(found.ratio),
            }  # fmt: skip
            cli._write(json_file, msgspec.json.format(msgspec.json.encode(document)).decode())
        if limit is not None and found.ratio.verdict == "slower" and found.ratio.ratio < 1 - limit:
            cli._complain(f"B is slower than A by more than {limit:.1%}")
            raise typer.Exit(1)


def _percent(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InvalidValue(f"--fail-if-slower was given '{text}'", "Write a share, such as 3% or 0.03")
    return value


@cli.app.command()
def noise(
    pairs: Annotated[int, typer.Option(min=2, max=100, help="of fresh processes")] = 10,
    budget: Annotated[float, typer.Option(help="seconds of measuring for a pair", min=0)] = 30.0,
    workload: cli.Workload = None,
    preset: cli.PresetName = None,
    device: cli.Device = None,
) -> None:
    """Measures a recipe against itself: how far apart equal things come out here. Verdicts use it."""
    from perfkit.results import noise as known
    from perfkit.studies import compare as comparing

    with cli._errors_in_words():
        plan = cli._plan(workload, preset, None, None, None, device)
        found = _with_bar(
            lambda show: comparing.measure_noise(plan, pairs, budget, lambda p: show(p.phase, p.fraction))
        )
        for one in found:
            typer.echo(f"  {one.ratio.ratio:.3f} ({one.ratio.low:.3f}-{one.ratio.high:.3f})")
        typer.echo(f"A/A noise of {plan.device}: {known.load(plan.device):.2%}, from {len(found)} pairs")


@cli.app.command()
def parity(
    what: Annotated[str, typer.Argument(metavar="STAGE|RECIPE", help="a stage, settings or the id of a run")],
    steps: Annotated[int, typer.Option(min=1, max=200, help="that each side trains")] = 4,
    workload: cli.Workload = None,
    preset: cli.PresetName = None,
    option: cli.Options = None,
    device: cli.Device = None,
    seed: cli.Seed = 0,
) -> None:
    """Does it still train the same? Losses and outputs against float64, and every mechanism proven."""
    from perfkit.studies import compare as comparing
    from perfkit.studies import parity as proving

    with cli._errors_in_words():
        plan = cli._plan(workload, preset, None, None, option, device, seed)
        side = comparing.side(what, plan)
        found = _with_bar(lambda show: proving.parity(plan, *side, steps, on_progress=show))
        for check in found.checks:
            typer.echo(f"  {'✓' if check.ok else '✗'} {check.name}: {check.evidence}")
        typer.echo(found.describe())
        if not found.ok:
            raise typer.Exit(1)


@cli.app.command()
def report(
    out: Annotated[Path, typer.Argument(help="the HTML file to write")],
    session: Annotated[str | None, typer.Option(help="of stored runs; the newest if left out")] = None,
) -> None:
    """Writes one self-contained HTML file of a stored session: to send to a colleague."""
    from perfkit.results.store import RunStore
    from perfkit.show import html as reports
    from perfkit.studies import engine

    with cli._errors_in_words():
        cli._check_writable(out)
        store = RunStore()
        chosen = session or next(iter(store.sessions()), None)
        runs = list(reversed(store.list(limit=1000, session=chosen))) if chosen else []
        if not runs:
            raise InvalidValue(f"no stored session '{session or ''}'", "`perfkit runs` lists them")
        cli._write(out, reports.html(runs, engine.scripts(runs)))
        typer.echo(f"wrote {out}: {len(runs)} stages of session {chosen}")


@cli.app.command()
def attribute(
    stages: cli.Stages = None,
    budget: Annotated[float, typer.Option(help="minutes of measuring", min=0)] = 10.0,
    orders: Annotated[int, typer.Option(min=2, help="random orders, where there are many stages")] = 6,
    workload: cli.Workload = None,
    preset: cli.PresetName = None,
    option: cli.Options = None,
    device: cli.Device = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the result there, - for stdout")
    ] = None,
) -> None:
    """What each optimization is worth, whatever the order: alone, after the others, on average (Shapley)."""
    import msgspec
    from rich.console import Console
    from rich.table import Table

    from perfkit.show import attribution
    from perfkit.studies import attribute as attributing

    with cli._errors_in_words():
        cli._check_writable(json_file)
        plan = cli._plan(workload, preset, None, None, option, device)
        names = [name.strip() for name in stages.split(",") if name.strip()] if stages else None
        found = _with_bar(
            lambda show: attributing.attribute(
                plan, names, 60 * budget, orders, lambda p: show(f"{p.stage}: {p.phase}", p.fraction)
            )
        )
        console = Console(stderr=str(json_file) == "-", highlight=False)
        shown = Table()
        for column in attribution.COLUMNS:
            shown.add_column(column, overflow="fold")
        for cells in attribution.table(found.effects):
            shown.add_row(*cells)
        console.print(shown)
        for line in found.sentences():
            console.print(f"  {line}", markup=False, soft_wrap=True)
        if not found.complete:
            console.print("  the budget is spent: call again to go on from here", markup=False)
        if json_file:
            cli._write(json_file, msgspec.json.format(msgspec.json.encode(found)).decode())


@cli.app.command()
def tune(
    space: Annotated[
        list[str] | None,
        typer.Option("--space", help="switch=value,value…; repeatable (default: the usual ones)"),
    ] = None,
    memory: Annotated[float | None, typer.Option(help="cap in GB", min=0)] = None,
    budget: Annotated[float, typer.Option(help="minutes of measuring", min=0)] = 10.0,
    plot: Annotated[
        Path | None, typer.Option(help="a PNG: speed against memory of all that was tried")
    ] = None,
    workload: cli.Workload = None,
    preset: cli.PresetName = None,
    option: cli.Options = None,
    device: cli.Device = None,
) -> None:
    """Finds the recipe with the most samples/s under a memory cap and within parity."""
    from perfkit.program.recipe import parse_settings
    from perfkit.studies import tune as tuning

    with cli._errors_in_words():
        cli._check_writable(plot)
        plan = cli._plan(workload, preset, None, None, option, device)
        wanted = {}
        for text in space or []:
            name, _, values = text.partition("=")
            wanted[name] = [parse_settings([f"{name}={value}"])[name.strip()] for value in values.split(",")]
        cap = int(memory * 1e9) if memory else None
        found = _with_bar(
            lambda show: tuning.tune(
                plan, wanted or None, cap, 60 * budget, lambda p: show(f"{p.stage}: {p.phase}", p.fraction)
            )
        )
        for line in found.sentences():
            typer.echo(line)
        for run in found.pareto():
            size = (run.peak_memory_bytes or 0) / 1e9
            rate = run.samples_per_s.median if run.samples_per_s else 0.0
            typer.echo(f"  {size:.2f} GB  {rate:.0f} samples/s  {run.title}")
        if plot:
            from perfkit.machine import write_atomically
            from perfkit.show import pareto, style

            drawn = pareto.figure(found.tried, found.pareto(), found.best, found.cap_bytes)
            write_atomically(plot, style.to_png(drawn))
