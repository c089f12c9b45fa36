"""Shows lanes in a notebook."""

import contextlib
import math
import numbers
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import msgspec
from IPython.display import HTML

from perfkit import machine
from perfkit.additions.lanes import MEASURE, sides
from perfkit.additions.lanes.figures import KINDS, Bar, DrawnSide, Lanes, in_ms
from perfkit.additions.shared.looking import LOOK, planned, prepared, profiled
from perfkit.errors import InvalidValue, one_of
from perfkit.notebook.shown import with_line
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.show import sentences
from perfkit.show.style import Figure
from perfkit.studies.planning import Where
from perfkit.studies.sources import Plan, Progress, Session

STEPS, FIRST = 36, 10
"""The number of profiled steps, and the first of the two that are shown: its work was launched, and the
batches that workers load in it were taken, within the recording."""
NOT_COMPARED = "not compared"
Given = Mapping[str, Any]  # for each title, the side's switches, a trace, or its rows of bars
RECORDED = "recordings/lanes"


def of_runs(runs: Sequence[Run], plan: Plan, progress: Progress | None = None) -> Figure | None:
    """The picture of one run or of two: as recorded or measured earlier, else measured now.

    Without a `progress` nothing is measured. None if no picture fits the comparison: then bars must do.
    """
    name = f"{plan.recorded}-{runs[-1].stage}" if plan.recorded else runs[-1].id
    folder = machine.shipped(RECORDED) if plan.recorded else machine.data_folder() / "lanes"
    file = folder / f"{name}.json"
    picture = None
    with contextlib.suppress(OSError, ValueError, RecursionError):  # missing, damaged, or an old version
        picture = _read(file)
    if picture is None and progress and not plan.recorded and all(map(_has_steps, runs)):
        with plan.trying(recipes=(), stages=()).open(progress, LOOK) as session:
            picture = of_measured(runs, session)
        file.parent.mkdir(parents=True, exist_ok=True)
        machine.write_atomically(file, msgspec.json.encode(picture))
    samples = [run.samples_per_step for run in runs]  # an older recording may have had another batch size
    wanted = [*zip(_titles([run.title for run in runs]), samples, strict=True)]
    _, ratio = sentences.pair(runs)
    fits = picture is not None and [(side.title, side.samples) for side in picture.sides] == wanted
    if picture is None or not fits or picture.contradicts(ratio):
        return None
    return _with_verdict(picture, runs).figure()


def _titles(names: Sequence[str]) -> list[str]:
    return [f"before: {names[0]}", f"after: {names[1]}"] if len(names) == 2 else [*names]


def _has_steps(run: Run) -> bool:
    """Whether a step is one batch of one process, on a device whose steps can be seen."""
    recipe = Recipe.from_dict(run.recipe)
    device = run.device.partition(":")[0]
    is_plain = recipe.accumulation == 1
    return run.status == "ok" and run.script is None and is_plain and device in ("cpu", "cuda", "sim")


def of_measured(runs: Sequence[Run], session: Session) -> Lanes:
    """The picture of one run or of two, from new steps like those that were measured."""
    titled = zip(_titles([run.title for run in runs]), runs, strict=True)
    found = [_looked(session, Recipe.from_dict(run.recipe), title, run) for title, run in titled]
    return _with_verdict(Lanes(found), runs)


def _with_verdict(picture: Lanes, runs: Sequence[Run]) -> Lanes:
    """The picture with the verdict and ceilings of its runs, because its own few steps prove neither."""
    sides = [*picture.sides]
    for at, (side, run) in enumerate(zip(sides, runs, strict=True)):
        if side.ceiling_ms and (rate := run.ceiling_samples_per_s):
            sides[at] = msgspec.structs.replace(side, ceiling_ms=1e3 * run.samples_per_step / rate)
    _, ratio = sentences.pair(runs)
    return Lanes(sides, ratio.verdict if ratio else NOT_COMPARED)


def lanes(which: str | Given, workload: str | None = None, **where: Unpack[Where]) -> HTML:
    """Before above after, two steady steps of each, on one axis of time.

    Args:
        which: the name of a recorded picture, or one or two titles with their contents: switches
            (of a training to measure or simulate), a trace file, or rows of bars
            `(start_ms, end_ms, kind, batch)` and the number of `steps`.
        workload: the workload for switches.
        where: as for `perfkit.profile`.
    """
    if isinstance(which, str):
        return HTML(recorded(which).figure().svg())
    if not 1 <= len(which) <= 2:
        raise InvalidValue(f"{len(which)} sides were given", "Give one, or two: before and after")
    return HTML(with_line(lambda progress: made(which, workload, where, progress)).figure().svg())


def recorded(name: str) -> Lanes:
    """A picture that comes with perfkit, such as `sim-v100-pinning`."""
    files = {file.stem: file for file in machine.shipped(RECORDED).glob("*.json")}
    if name not in files:
        raise one_of(name, sorted(files), "recorded picture")
    return _read(files[name])


def _read(file: Path) -> Lanes:
    return msgspec.json.decode(file.read_bytes(), type=Lanes)


def made(which: Given, workload: str | None, where: Where, progress: Progress) -> Lanes:
    """The picture of what was given. Two stamped steps are too few to compare anything."""
    drawn = dict[str, DrawnSide]()
    recipes = dict[str, Recipe]()
    for title, one in which.items():
        if isinstance(one, str | Path):
            drawn[title] = sides.of_trace(one, title)
        elif any(isinstance(value, list | tuple) for value in one.values()):
            drawn[title] = _by_hand(title, one)
        else:
            recipes[title] = Recipe.from_dict(one)
            planned(workload, recipes[title], where)  # refused now, not after the other was measured
    for title, recipe in recipes.items():
        with prepared(workload, recipe, where, progress) as (session, used):
            drawn[title] = _looked(session, used, title)
    found = [drawn[title] for title in which]
    return Lanes(found, NOT_COMPARED if any(side.middle_ms for side in found) else "")


def _looked(session: Session, recipe: Recipe, title: str, run: Run | None = None) -> DrawnSide:
    """Two steady steps of a recipe, like those of its run: stamped on a CPU, elsewhere from a profile."""
    if session.source.plan.subject.device == "cpu":
        step_s = run.step_s.value if run and run.step_s else None
        return session.ask_training(recipe, MEASURE, title=title, step_s=step_s)  # type: ignore[no-any-return]
    with tempfile.TemporaryDirectory(prefix="perfkit-") as folder:
        trace = profiled(session, recipe, STEPS, Path(folder, "steps.pt.trace.json.gz"))
        side = sides.of_trace(trace, title, FIRST)
    return msgspec.structs.replace(side, samples=recipe.batch_size * recipe.accumulation)


def _by_hand(title: str, given: Given) -> DrawnSide:
    """A side from rows of bars that a cell has recorded, for one step or for `steps`."""
    rows = {name: [_bar(bar) for bar in row] for name, row in given.items() if name != "steps"}
    bars = [bar for row in rows.values() for bar in row]
    if not bars:
        raise InvalidValue(f"the rows of '{title}' have no bars", "Write (start_ms, end_ms, kind, batch)")
    if all(bar.batch is None for bar in bars):  # then each shows its duration
        rows = {name: [_timed(bar) for bar in row] for name, row in rows.items()}
    told: Any = given.get("steps", 1)
    if isinstance(told, bool) or not isinstance(told, numbers.Integral) or told < 1:
        raise InvalidValue(f"'steps' is {told!r}", "Give the number of steps in the rows, at least 1")
    steps = int(told)  # it may be a number of NumPy
    end_ms = max(bar.end_ms for bar in bars)
    return DrawnSide(title=title, step_ms=end_ms / steps, steps=steps, rows=rows)


def _bar(given: Any) -> Bar:
    refusal = InvalidValue(f"{given!r} is not a bar", "Write (start_ms, end_ms, kind, batch)")
    try:
        start_ms, end_ms, kind, *more = given
        start_ms, end_ms = float(start_ms), float(end_ms)
    except (TypeError, ValueError, OverflowError):
        raise refusal from None
    if len(more) > 3 or not math.isfinite(end_ms - start_ms):
        raise refusal
    if str(kind) not in KINDS:
        raise one_of(kind, [*KINDS], "kind of bar")
    return Bar(start_ms, end_ms, kind, *more)


def _timed(bar: Bar) -> Bar:
    return msgspec.structs.replace(bar, words=bar.words or in_ms(bar.end_ms - bar.start_ms))
