"""Makes what is in data/recordings/ again: `python -m docs.record [--only PART ...]`.

`ladder` measures the ladder at the preset `quick` on the CPU with the README's pictures, `traces` records
two traces of the photos, `simulated` computes the article's ladder and a timeline on a simulated GPU,
`lanes` pictures of steps before and after, `climb` all combinations of the article's switches. About ten
minutes on two cores. `grid` measures 32 combinations of the loop on a CPU, which takes 25 minutes more: it is
made only where it is named. What other programs disturbed is refused, and no file changes. At the end
`docs.climb` and `docs.pictures` make the page and the README's pictures of what is recorded.
"""

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

import perfkit
from docs import climb, pictures
from perfkit import machine
from perfkit.additions.lanes import panel
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


LANES = {
    "02": ("baseline", "data_loading"),
    "03": ("data_loading", "pinning"),
    "04": ("pinning", "batch_size"),
    "05": ("batch_size", "uint8_copy"),
    "06": ("uint8_copy", "amp"),
    "07": ("amp", "compile"),
}


class Refused(PerfkitError):
    """What was measured must not be shipped."""


def ladder(folder: Path) -> list[str]:
    """The ladder of the README, with its pictures."""
    runs = measured(perfkit.plan("photos", preset="quick", device="cpu"))
    disturbed = [f"{run.title} ({run.disturbed:.0%})" for run in runs if run.disturbed is not None]
    if disturbed:
        raise Refused(f"other programs disturbed {', '.join(disturbed)}", CLOSE)
    (folder / LADDER).write_bytes(recordings.text(runs))
    for name, dark in PICTURES.items():
        (folder / name).write_bytes(figures.throughput(runs).png(dark))
    return [LADDER, *PICTURES]


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
    (folder / SIMULATED).write_bytes(recordings.text(measured(plan)))
    perfkit.profile(None, "data_loading", out=folder / TIMELINE, device="sim:v100", host="article")
    return [SIMULATED, TIMELINE]


def lanes(folder: Path) -> list[str]:
    """The pictures below chapters' titles: steps of the article's ladder before and after, simulated."""
    runs = {run.stage: run for run in recordings.find("sim-v100")}
    (folder / "lanes").mkdir(exist_ok=True)
    for chapter, (before, after) in LANES.items():
        first, second = runs[before].recipe, runs[after].recipe
        if after == "amp":  # the article doubled the batch as well
            second = {**first, "amp": "fp16"}
        titles = f"before: {runs[before].title}", f"after: {runs[after].title}"
        picture = panel.made(
            dict(zip(titles, (first, second), strict=True)),
            None,
            {"device": "sim:v100", "host": "article"},
            Progress(),
        )
        (folder / "lanes" / f"{chapter}.json").write_bytes(msgspec.json.encode(picture))
    return [f"lanes/{chapter}.json" for chapter in LANES]


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
    compact = msgspec.json.encode(msgspec.json.decode(recordings.text(runs)))
    (folder / climb.GRID).write_bytes(compact)
    return [climb.GRID]


PARTS = {
    "ladder": ladder,
    "traces": traces,
    "simulated": simulated,
    "lanes": lanes,
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
