"""The page "Climb it yourself": every combination of some switches, and what the page shows of each.

`python -m docs.climb` writes data/recordings/climb.html, one file that needs no kernel, network or server,
from docs/climb.template.html and the numbers in data/recordings/climb/. `python -m docs.record` makes those:
its part `climb` predicts the combinations of the article's switches on a simulated GPU, its part `grid`
measures some of the loop's on a CPU. Until `grid` is recorded, the page shows what the recorded ladder has.
"""

import dataclasses
import itertools
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

import perfkit
from docs import elsewhere
from perfkit import export, machine
from perfkit.additions.lanes import sides
from perfkit.additions.lanes.figures import Bar
from perfkit.additions.lanes.panel import FIRST, STEPS
from perfkit.additions.shared.looking import LOOK, PROFILE
from perfkit.additions.simulate.host import IDEAL
from perfkit.errors import PerfkitError, RunFailed
from perfkit.ladder.catalogue import Budget, Stage
from perfkit.recipe import Recipe, Value
from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.results.schema import AGAIN
from perfkit.studies.sources import Plan, Session, Source

ROOT = Path(__file__).parents[1]
RECORDINGS = ROOT / "data" / "recordings"
TEMPLATE = ROOT / "docs" / "climb.template.html"
PAGE = RECORDINGS / "climb.html"
SIMULATED, GRID = "climb/sim-v100.json", "climb/cpu-grid.json"
MARK = "/* the numbers of docs/climb.py */"
COLAB = "https://colab.research.google.com/github/{repository}/blob/main/notebooks/00_start_here.ipynb"

Changes = dict[str, Value]


class Level(msgspec.Struct, frozen=True):
    """A value of a switch, and what it sets."""

    title: str
    sets: Changes = {}


class Knob(msgspec.Struct, frozen=True):
    """What a reader can turn: the first level is the plain loop's."""

    title: str
    asks: str
    levels: list[Level]


class Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A combination. Its gains are ratios with the ends of their intervals."""

    why: str = ""
    """Why there is nothing else."""
    samples_per_s: float = 0.0
    interval: tuple[float, float] | None = None
    gain: list[float] = []
    """Over the plain loop."""
    next: dict[str, list[float]] = {}
    """What each combination that differs in one knob would gain over this one."""
    step_ms: float = 0.0
    samples: int = 0
    wait_ms: float = 0.0
    """Of a step, for data."""
    computes_ms: float = 0.0
    ceiling: float | None = None
    """samples/s on a batch that is already on the device."""
    memory_gib: float | None = None
    rows: dict[str, list[Bar]] = {}
    diff: str = ""


class Climb(msgspec.Struct, frozen=True, kw_only=True):
    """All combinations of some knobs on one machine; those that are missing were not recorded."""

    title: str
    simulated: bool
    about: str
    workload: str
    knobs: list[Knob]
    found: dict[str, Shown]
    """By the levels of the knobs, a digit each."""


# ---------------------------------------------------------------- the article's switches, on a simulated GPU

ARTICLE = [
    Knob("Loader workers", "load in other processes", [Level("0"), Level("8", {"workers": 8})]),
    Knob(
        "Pinned memory",
        "with a copy that does not block",
        [Level("off"), Level("on", {"pin_memory": True, "non_blocking": True})],
    ),
    Knob(
        "Batch size",
        "more samples in each step",
        [Level("32"), Level("512", {"batch_size": 512}), Level("1,024", {"batch_size": 1024})],
    ),
    Knob("uint8 copy", "loads and copies bytes", [Level("off"), Level("on", {"uint8_copy": True})]),
    Knob("AMP", "computes in 16 bits", [Level("off"), Level("fp16", {"amp": "fp16"})]),
    Knob("torch.compile", "fuses kernels", [Level("off"), Level("on", {"compile": True})]),
]


def combinations(knobs: Sequence[Knob]) -> Iterator[tuple[str, Changes]]:
    """Every combination: the digits of its levels, and what it sets."""
    for digits in itertools.product(*(range(len(knob.levels)) for knob in knobs)):
        chosen = [knob.levels[digit].sets for knob, digit in zip(knobs, digits, strict=True)]
        yield "".join(map(str, digits)), {name: value for sets in chosen for name, value in sets.items()}


def neighbours(key: str, knobs: Sequence[Knob]) -> Iterator[str]:
    """The combinations that differ from one in one knob."""
    for at, knob in enumerate(knobs):
        for digit in map(str, range(len(knob.levels))):
            if digit != key[at]:
                yield key[:at] + digit + key[at + 1 :]


def simulate(knobs: Sequence[Knob] = ARTICLE, only: Sequence[str] = ()) -> Climb:
    """Predicts all combinations of the article's switches on its GPU, or `only` some, without their gains."""
    plan = perfkit.plan(device="sim:v100", host="article")
    predictions, found = dict[str, Any](), dict[str, Shown]()
    with plan.open(study=LOOK) as session:
        plain = _script(plan, session.source, Recipe())
        for key, sets in combinations(knobs):
            if only and key not in only:
                continue
            recipe = Recipe().replace(**sets)
            diff = _diff(plain, _script(plan, session.source, recipe))
            try:
                predictions[key] = session.prediction(recipe)
                found[key] = msgspec.structs.replace(_predicted(predictions[key], session), diff=diff)
            except RunFailed as problem:
                found[key] = Shown(why=str(problem).splitlines()[0], diff=diff)
            _say(f"{len(found)} {recipe.describe()}")
    for key, own in {} if only else predictions.items():
        gains = {
            other: _gain(predictions[other], own) for other in neighbours(key, knobs) if other in predictions
        }
        first = _gain(own, predictions["0" * len(knobs)])
        found[key] = msgspec.structs.replace(found[key], gain=first, next=gains)
    gpu = session.prediction(Recipe())
    return Climb(
        title="simulated V100",
        simulated=True,
        about=f"Predicted, not measured: a simulated {gpu.gpu.name} with the {gpu.host.describe()}.",
        workload="ResNet-18 on images of 224 × 224",
        knobs=list(knobs),
        found=found,
    )


def _predicted(prediction: Any, session: Session) -> Shown:
    outcome, recipe = prediction.steady, prediction.recipe
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "steps.json")
        session.ask_training(recipe, PROFILE, path=str(path), active=STEPS)
        lanes = sides.of_trace(path, "", FIRST)
    rate = recipe.batch_size / outcome.step_s
    return Shown(
        samples_per_s=round(rate, 1),
        interval=(round(rate / (1 + prediction.band)), round(rate * (1 + prediction.band))),
        step_ms=round(1e3 * outcome.step_s, 2),
        samples=recipe.batch_size,
        wait_ms=round(1e3 * outcome.data_wait_s, 2),
        computes_ms=round(1e3 * prediction.kernel_s, 2),
        ceiling=round(recipe.batch_size / prediction.outcome(IDEAL).step_s),
        memory_gib=round(prediction.peak[0] / 2**30, 2),
        rows={name: _rounded(bars) for name, bars in lanes.rows.items()},
    )


def _rounded(bars: Sequence[Bar]) -> list[Bar]:
    return [
        msgspec.structs.replace(bar, start_ms=round(bar.start_ms, 2), end_ms=round(bar.end_ms, 2))
        for bar in bars
    ]


def _gain(own: Any, other: Any) -> list[float]:
    """The ratio of two predicted rates, with the ends of the band that its error is expected in."""
    steps = [each.recipe.batch_size / each.steady.step_s for each in (own, other)]
    ratio, band = steps[0] / steps[1], 1 + own.band_of_gain(other)
    return [round(ratio, 3), round(ratio / band, 3), round(ratio * band, 3)]


def _script(plan: Plan, source: Source, recipe: Recipe) -> str:
    subject = plan.subject
    return export.script(
        recipe, subject.workload, source.description.options, subject.device, subject.seed, set_up=False
    )


def _diff(before: str, after: str) -> str:
    """The lines of a script that are others than before."""
    lines = export.diff(before, after, "").splitlines()[2:]
    return "\n".join(line.rstrip() for line in lines if line[:1] in "+-")


# ---------------------------------------------------------------- the loop on a CPU: measured

LADDER = [
    Knob("Memory reuse", "keeps freed memory", [Level("off"), Level("on", {"allocator": "keep"})]),
    Knob(
        "Loader workers",
        "load in another process",
        [Level("0"), Level("1", {"workers": 1, "wait_policy": "passive"})],
    ),
    Knob("Batch size", "more samples in each step", [Level("32"), Level("64", {"batch_size": 64})]),
    Knob("uint8 copy", "loads bytes", [Level("off"), Level("on", {"uint8_copy": True})]),
    Knob("channels_last", "another memory layout", [Level("off"), Level("on", {"channels_last": True})]),
    Knob("Scaled decode", "decodes smaller photos", [Level("off"), Level("on", {"scaled_decode": True})]),
    Knob(
        "AMP",
        "and a core left to the worker",
        [Level("off"), Level("bf16", {"amp": "bf16", "cpu_threads": 1})],
    ),
    Knob("torch.compile", "fuses kernels", [Level("off"), Level("on", {"compile": True})]),
]
"""Those of the recorded ladder."""

MEASURED = [knob for knob in LADDER if knob.title not in ("Batch size", "uint8 copy", "torch.compile")]
"""Those of the grid: 32 combinations."""


def measure(
    knobs: Sequence[Knob] = MEASURED, preset: str = "quick", minutes: float = 24, group: int = 8
) -> list[Run]:
    """Measures all combinations on this CPU, `group` of them and the plain loop in the same rounds.

    Each group has its part of the minutes, in as many incarnations as fit. Stages that other programs
    disturbed are left out by the page.
    """
    plan = perfkit.plan("photos", preset=preset, device="cpu")
    plain, *others = [Stage(key, key, Recipe().replace(**sets)) for key, sets in combinations(knobs)]
    groups = [others[at : at + group] for at in range(0, len(others), group)]
    part_s = 60 * minutes / len(groups)
    runs = list[Run]()
    with plan.open() as session:
        for number, some in enumerate(groups, 1):
            rule = dataclasses.replace(plan.rule, budget=Budget(part_s, part_s), cached=2)
            first, *more = session.measure([plain, *some], rule)
            if first.status != "ok":
                raise PerfkitError(f"the plain loop could not be measured: {first.reason}", "Try again")
            runs += more if runs else [first, *more]
            _say(f"{number} of {len(groups)} groups are measured")
            if session.stopped:
                raise PerfkitError("stopped before all combinations were measured", "Nothing was written")
    return runs


def of_runs(runs: Sequence[Run], knobs: Sequence[Knob], about: str) -> Climb:
    """What was measured of the combinations of some knobs; the first run is the plain loop."""
    keys, found = {Recipe().replace(**sets): key for key, sets in combinations(knobs)}, dict[str, Shown]()
    plain = export.script(Recipe(), runs[0].workload, runs[0].options, runs[0].device, set_up=False)
    for run in runs:
        key = keys.get(Recipe.from_dict(run.recipe))
        if key is None or key in found or run.stage == AGAIN or run.status == "not_applicable":
            continue
        text = export.script(
            Recipe.from_dict(run.recipe), run.workload, run.options, run.device, set_up=False
        )
        found[key] = msgspec.structs.replace(_measured(run), diff=_diff(plain, text))
    for key, own in found.items():
        if own.gain:
            there = {other: found[other] for other in neighbours(key, knobs) if other in found}
            gains = {other: _over(each.gain, own.gain) for other, each in there.items() if each.gain}
            found[key] = msgspec.structs.replace(own, next=gains)
    cores_ = runs[0].machine["cpu"]["cores_usable"]
    return Climb(
        title=f"measured on {cores_} CPU cores",
        simulated=False,
        about=about,
        workload="A small network on JPEG photos",
        knobs=list(knobs),
        found=found,
    )


def _measured(run: Run) -> Shown:
    rate, step, wait = run.samples_per_s, run.step_s, run.data_wait_share
    if not (rate and step and wait is not None):
        return Shown(why=run.reason or "it was not measured")
    if run.disturbed is not None:
        return Shown(why="other programs disturbed it")
    ratio, step_ms = run.speedup("baseline"), 1e3 * run.samples_per_step / rate.value
    gain = [ratio.ratio, ratio.low, ratio.high] if ratio else [1.0, 1.0, 1.0]
    kind = "wait" if run.recipe["workers"] else "load"
    bars = [
        Bar(round(at * step_ms + start, 2), round(at * step_ms + end, 2), what, at)
        for at in range(2)
        for start, end, what in ((0.0, wait * step_ms, kind), (wait * step_ms, step_ms, "compute"))
    ]
    return Shown(
        samples_per_s=round(rate.value, 1),
        interval=(round(rate.low, 1), round(rate.high, 1)),
        gain=[round(value, 3) for value in gain],
        step_ms=round(step_ms, 2),
        samples=run.samples_per_step,
        wait_ms=round(wait * step_ms, 2),
        computes_ms=round((1 - wait) * step_ms, 2),
        rows={"loop": bars},
    )


def _over(own: Sequence[float], other: Sequence[float]) -> list[float]:
    """The ratio of two gains; their errors as independent ones, though they share the plain loop's."""
    ratio = own[0] / other[0]
    half = math.hypot(*(math.log(each[2] / each[1]) / 2 for each in (own, other)))
    return [round(ratio * math.exp(sign * half), 3) for sign in (0, -1, 1)]


def measured(folder: Path = RECORDINGS) -> Climb:
    """The grid if it is recorded, else what the recorded ladder has of its combinations."""
    path, knobs = folder / GRID, MEASURED
    if not path.is_file():
        path, knobs = folder / "cpu-quick.json", LADDER
    runs = recordings.find(str(path))
    origin = runs[0].origin.describe() if runs[0].origin else ""
    about = f"{origin}; intervals are of 95%."
    return of_runs(runs, knobs, about)


# ---------------------------------------------------------------- the page


def simulated(folder: Path = RECORDINGS) -> Climb:
    """What was predicted of all combinations."""
    return msgspec.json.decode((folder / SIMULATED).read_bytes(), type=Climb)


def page(climbs: Sequence[Climb], book: str = "") -> str:
    """The page with its numbers; `book` is the address of the book's first chapter, where it is in one."""
    repository = elsewhere.setting()
    ways = [("The course as a book", book)] if book else []
    if repository:
        ways.append(("In Colab", COLAB.format(repository=repository)))
    numbers = msgspec.json.encode({"ways": ways, "climbs": climbs}).decode()
    numbers = numbers.replace("<", "\\u003c")  # or a closing tag in a text would end the script
    return TEMPLATE.read_text(encoding="utf-8").replace(MARK, numbers)


def current(book: str = "") -> str:
    """The page with what is recorded."""
    return page([simulated(), measured()], book)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    """Writes the page."""
    text = current()
    machine.write_atomically(PAGE, text.encode())
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}: {len(text.encode()):,} bytes\n")


if __name__ == "__main__":
    main()
