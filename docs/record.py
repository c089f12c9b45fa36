"""Makes what is in data/recordings/ again: `python -m docs.record [--only PART ...]`.

`ladder` measures the ladder at the preset `quick` on the CPU with the README's pictures, `traces` records
two traces of the photos, `simulated` computes the article's ladder and a timeline on a simulated GPU,
`lanes` pictures of steps before and after, `drills` the cards of the drills, `mysteries` two steps of some
mystery loops, `climb` all combinations of the article's switches. About ten minutes on two cores. `grid`
measures 32 combinations of the loop on a CPU, which takes 25 minutes more: it is made only where it is named.
What other programs disturbed is refused, and no file changes. At the end `docs.climb` and `docs.pictures`
make the page and the pictures of the README.
"""

import argparse
import hashlib
import os
import runpy
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

import perfkit
from docs import climb, pictures
from perfkit import machine
from perfkit.additions.drills import cards
from perfkit.additions.lanes import panel
from perfkit.additions.lanes.figures import Lanes
from perfkit.additions.shared.looking import LOOK
from perfkit.errors import PerfkitError
from perfkit.machine import cores
from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.show import figures
from perfkit.studies.sources import Plan, Progress

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "data" / "recordings"
PROVENANCE = "provenance.json"
LADDER = "cpu-quick.json"
PICTURES = {"cpu-quick.png": False, "cpu-quick-dark.png": True}
"""File → whether it is for a dark page."""
TRACES = {"baseline": "traces/photos-baseline.pt.trace.json.gz",
          "data_loading": "traces/photos-data_loading.pt.trace.json.gz"}  # fmt: skip
SIMULATED = "sim-v100.json"
CLOSE = "Close them, then record again"
TIMELINE = "traces/sim-v100-data_loading.pt.trace.json.gz"


LANES = {"sim-v100": {"device": "sim:v100", "host": "article"}, "cpu-quick": {"device": "cpu"}}
"""Recordings whose stages get a picture of their steps, and where it is made."""


_BACKWARD = [(0, 40, "compute")]
DRAWN = {
    "hidden-waits": {
        "loss read in each step": {
            "steps": 2,
            "host": [
                (0, 9, "load", 0),
                (9, 19, "wait", 0, 0, "loss"),
                (19, 28, "load", 1),
                (28, 38, "wait", 1, 0, "loss"),
            ],
            "kernels": [(9, 19, "compute", 0), (28, 38, "compute", 1)],
        },
        "loss read at the end": {
            "steps": 2,
            "host": [(0, 9, "load", 1), (9, 18, "load", 2), (18, 20, "load", 3)],
            "kernels": [(0, 10, "compute", 0), (10, 20, "compute", 1)],
        },
    },
    "buckets": {
        "gradients averaged in one piece": {"kernels": _BACKWARD, "exchange": [(40, 56.4, "exchange", 1)]},
        "averaged in four buckets": {
            "kernels": _BACKWARD,
            "exchange": [(10 * n, 10 * n + 4.4, "exchange", n) for n in range(1, 5)],
        },
    },
}
"""Pictures of chapters 11 and 13 whose times follow from their text: nothing is measured."""


class Refused(PerfkitError):
    """What was measured must not be shipped."""


def ladder(folder: Path) -> list[str]:
    """The ladder of the README, with its pictures."""
    runs = measured(perfkit.plan("photos", preset="quick", device="cpu"))
    _undisturbed(runs)
    (folder / LADDER).write_bytes(recordings.content(runs))
    for name, dark in PICTURES.items():
        (folder / name).write_bytes(figures.throughput(runs).png(dark))
    return [LADDER, *PICTURES]


def _undisturbed(runs: list[Run]) -> None:
    disturbed = [f"{run.title} ({run.disturbed:.0%})" for run in runs if run.disturbed is not None]
    if disturbed:
        raise Refused(f"other programs disturbed {', '.join(disturbed)}", CLOSE)


def traces(folder: Path) -> list[str]:
    """The two traces of chapter 02: the same compute threads in both, only the loader differs."""
    for stage, file in TRACES.items():
        recipe = None if stage == "baseline" else stage
        settings = {"cpu_threads": 1}
        perfkit.profile("photos", recipe, out=folder / file, preset="quick", device="cpu", settings=settings)
    return [*TRACES.values()]


def simulated(folder: Path) -> list[str]:
    """The article's ladder on its GPU, and a timeline: computed, not measured."""
    plan = perfkit.plan(device="sim:v100", host="article")
    (folder / SIMULATED).write_bytes(recordings.content(measured(plan)))
    perfkit.profile(None, "data_loading", out=folder / TIMELINE, device="sim:v100", host="article")
    return [SIMULATED, TIMELINE]


def lanes(folder: Path) -> list[str]:
    """Two steps of each stage, before and after: the article's are simulated, those of the CPU measured."""
    (folder / "lanes").mkdir(exist_ok=True)
    pictures = {}
    for name, where in LANES.items():
        runs = recordings.find(name)
        for run in runs:
            if run.status != "ok" or run.is_again:
                continue
            before = run.previous(runs)
            both = [one for one in (before, run) if one]
            pictures[f"{name}-{run.stage}"] = _pictured(both, where)
            if name == "sim-v100" and before and run.stage == "amp":  # the article doubled the batch as well
                alone = {**before.recipe, "amp": "fp16"}
                both[-1] = msgspec.structs.replace(run, recipe=alone)
                pictures[f"{name}-amp-alone"] = _pictured(both, where)
    for name, given in DRAWN.items():
        picture = panel.made(given, None, {}, Progress())
        sides = [msgspec.structs.replace(side, note="computed") for side in picture.sides]
        pictures[name] = Lanes(sides)
    for name, picture in pictures.items():
        (folder / "lanes" / f"{name}.json").write_bytes(msgspec.json.encode(picture))
    return [f"lanes/{name}.json" for name in pictures]


def _pictured(runs: list[Run], where: dict[str, str]) -> Lanes:
    run = runs[-1]
    plan = perfkit.plan(run.workload, run.preset, ["baseline"], options=run.options, **where)
    with plan.open(study=LOOK) as session:
        return panel.of_measured(runs, session)


def drills(folder: Path) -> list[str]:
    """The cards of the drills: two steps of each, and what each of three changes gains."""
    (folder / "drills").mkdir(exist_ok=True)
    names = []
    for number, asked in enumerate(cards.asked(), 1):
        names.append(f"drills/{number}.json")
        (folder / names[-1]).write_bytes(msgspec.json.encode(_card(asked)))
    return names


def _card(asked: cards.Asked) -> cards.Recorded:
    """A loop and its changes: simulated, or measured here in the same rounds."""
    preset = None if asked.device.startswith("sim:") else "quick"
    where = {"device": asked.device, "host": asked.host if preset is None else None}
    plan = perfkit.plan(preset=preset, stages=["baseline"], options=asked.options, **where)
    recipes = {"this loop": asked.recipe} | {
        name: asked.recipe.replace(**change) for name, change in asked.tries.items()
    }
    first, *runs = measured(plan.trying(recipes=tuple(recipes.items()), stages=()))
    _undisturbed([first, *runs])
    gains = {run.title: gain for run in runs if not run.is_again and (gain := run.speedup("baseline"))}
    best = max(gains, key=lambda name: gains[name].ratio)
    with plan.open(study=LOOK) as session:
        picture = panel.of_measured([first, next(run for run in runs if run.title == best)], session)
    origin = recordings.provenance().describe()
    if first.simulated:
        origin = f"Simulated: {first.simulated.gpu}, host {asked.host}; nothing ran on a GPU"
    return cards.Recorded(origin, picture, gains)


MYSTERIES = {
    "busy_workers": {"two steps": (30, 10)},
    "slow_disk": {"two steps": (2, 8)},
    "larger_set": {"two steps": (2, 5)},
}
"""Loops whose cause a picture shows: a title, how much its `train` does, the first of the steps shown."""


def mysteries(folder: Path) -> list[str]:
    """Two steps of some mystery loops, by the clock, on this machine's CPU."""
    (folder / "lanes").mkdir(exist_ok=True)
    names = []
    for name, wanted in MYSTERIES.items():
        script = machine.shipped(f"puzzles/mysteries/{name}.py")
        given = {title: _stepped(script, *how) for title, how in wanted.items()}
        made = panel.made(given, None, {}, Progress())
        sides = [msgspec.structs.replace(side, note="measured by the clock") for side in made.sides]
        names.append(f"lanes/mystery-{name}.json")
        (folder / names[-1]).write_bytes(msgspec.json.encode(Lanes(sides)))
    return names


def _stepped(script: Path, count: int, first: int) -> dict[str, Any]:
    """Rows of two steps: the host fetches until the model is called; the rest of the step is computing."""
    begins, ends = list[float](), list[float]()

    def called(*_: object) -> None:
        if len(begins) == len(ends):  # the outermost module of a step
            begins.append(time.perf_counter())

    loop = runpy.run_path(str(script))
    hooks = (
        register_module_forward_pre_hook(called),
        register_optimizer_step_post_hook(lambda *_: ends.append(time.perf_counter())),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what is computed is small, and threads would wait for each other
    try:
        loop["train"](count)
    finally:
        torch.set_num_threads(threads)
        for hook in hooks:
            hook.remove()
    rows: dict[str, Any] = {"steps": 2, "host": [], "kernels": []}
    zero = ends[first - 1]
    for step in (first, first + 1):
        start, at, end = (1e3 * (one - zero) for one in (ends[step - 1], begins[step], ends[step]))
        fetches = ("wait", step, 0, "data") if script.stem == "busy_workers" else ("load", step)
        rows["host"].append((start, at, *fetches))
        rows["kernels"].append((at, end, "compute", step))
    return rows


def combinations(folder: Path) -> list[str]:
    """What each combination of the article's switches does on its GPU: predicted, for the page."""
    (folder / "climb").mkdir(exist_ok=True)
    (folder / climb.SIMULATED).write_bytes(msgspec.json.encode(climb.simulate()))
    return [climb.SIMULATED]


def grid(folder: Path) -> list[str]:
    """Combinations of the loop's switches on the CPU: measured, for the same page."""
    runs = climb.measure()
    disturbed = [run.title for run in runs if run.disturbed is not None]
    if len(disturbed) > len(runs) / 4:
        raise Refused(f"other programs disturbed {len(disturbed)} of {len(runs)} combinations", CLOSE)
    (folder / "climb").mkdir(exist_ok=True)
    compact = msgspec.json.encode(msgspec.json.decode(recordings.content(runs)))
    (folder / climb.GRID).write_bytes(compact)
    return [climb.GRID]


PARTS = {
    "ladder": ladder,
    "traces": traces,
    "simulated": simulated,
    "lanes": lanes,
    "drills": drills,
    "mysteries": mysteries,
    "climb": combinations,
    "grid": grid,
}
USUAL = [name for name in PARTS if name != "grid"]


def measured(plan: Plan) -> list[Run]:
    """The runs of a plan; a stage that fails spoils it."""
    runs = perfkit.climb(plan)
    failed = [f"{run.title}: {run.reason}" for run in runs if run.status in ("failed", "cancelled")]
    if failed:
        raise Refused("; ".join(failed), "Nothing was written")
    return runs


def record(names: list[str], out: Path) -> None:
    """Makes parts into a copy of the folder, then moves them into it with their provenance."""
    commit = machine.facts()["commit"]
    if out == FOLDER and (commit is None or commit.endswith("-dirty")):
        raise Refused("this working tree has changes without a commit", "Commit them first, or use --out")
    listing = out / PROVENANCE
    parts = msgspec.json.decode(listing.read_bytes())["parts"] if listing.is_file() else {}
    with tempfile.TemporaryDirectory(prefix="perfkit-recordings-") as scratch:
        # Nothing of this user's: no stored A/A noise, no runs; children import this checkout.
        os.environ.update(PERFKIT_DATA=f"{scratch}/data", PYTHONPATH=str(ROOT))
        os.environ.pop("PERFKIT_PRESET", None)
        stage = Path(scratch, "recordings")
        (stage / "traces").mkdir(parents=True)
        (out / "traces").mkdir(parents=True, exist_ok=True)
        for name in names:
            before = cores.read_conditions()
            files = PARTS[name](stage)
            digests = {file: hashlib.sha256((stage / file).read_bytes()).hexdigest() for file in files}
            parts[name] = {
                **msgspec.to_builtins(recordings.provenance()),
                "conditions": {"before": before, "after": cores.read_conditions()},
                "sha256": digests,
            }
            for file in files:
                (out / file).parent.mkdir(exist_ok=True)
                shutil.copyfile(stage / file, out / file)
            text = msgspec.json.encode({"schema": 1, "parts": parts})
            machine.write_atomically(listing, msgspec.json.format(text, indent=1))
    if out == FOLDER:
        climb.main()
        pictures.main()


def main() -> int:
    """Records; 1 if refused."""
    parser = argparse.ArgumentParser(prog="python -m docs.record", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=USUAL, help="parts (default: all but grid)"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="default: %(default)s")
    options = parser.parse_args()
    try:
        record(options.only, options.out.absolute())
    except PerfkitError as problem:
        sys.stderr.write(f"refused: {problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
