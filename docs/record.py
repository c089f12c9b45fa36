"""Makes everything in data/recordings/ again: `make recordings`.

    python -m docs.record [--only traces,ladder,simulated,pictures] [--out FOLDER]

`traces` records the two traces of chapter 09, `ladder` measures the ladder at the preset `quick` on the CPU,
`simulated` computes the article's ladder on simulated GPUs (again when the constants change),
`pictures` draws the README's pictures from the recorded ladder and measures nothing. About ten minutes on two
cores, unattended.

Only a quiet machine is recorded. Before each part the others must leave 95% of the cores alone; a part during
which they do not is made again, and in the end the command refuses and names who disturbed it. The folder is
replaced as a whole, after everything was made; provenance.json in it holds the conditions.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from docs.quiet import LIMIT, WINDOW_S, Look, Machine, Refused, wait_until_quiet
from perfkit.errors import PerfkitError

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "data" / "recordings"
PROVENANCE = "provenance.json"
CLAIMS = ROOT / "tests" / "contract" / "test_recordings.py"
GIVE_UP_AFTER = 6
"""Windows in succession: after this much disturbance the rest of a ladder is not worth its time."""


@dataclass(frozen=True)
class Part:
    """Some files of the folder that are made together."""

    name: str
    files: tuple[str, ...]
    make: Callable[[Path, threading.Event], str]
    """Writes the files into a folder, stops early if the event is set; returns what disturbed the result."""
    measures: bool = True
    """Whether the machine must be quiet."""
    any_window: bool = True
    """Whether one disturbed window spoils it; a ladder measures its disturbed blocks again by itself."""
    attempts: int = 3


@dataclass(frozen=True)
class Attempt:
    """A part that was made, and how disturbed the machine was meanwhile."""

    looks: list[Look]
    problem: str
    """Why it cannot be kept; empty if it can."""


# ---------------------------------------------------------------- undisturbed, or again


def attempt(part: Part, folder: Path, machine: Machine) -> Attempt:
    """Makes a part while looking at the machine; a thread makes it, so that it can be stopped."""
    cancelled, ended = threading.Event(), threading.Event()
    looks: list[Look] = []
    most = 1 if part.any_window else GIVE_UP_AFTER
    machine.start()
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(part.make, folder, cancelled)
        work.add_done_callback(lambda _: ended.set())
        try:
            while not (ended.is_set() or cancelled.is_set()):
                if look := machine.look(ended):
                    looks.append(look)
                if part.measures and len(looks) >= most and not any(one.quiet for one in looks[-most:]):
                    cancelled.set()
        except BaseException:
            cancelled.set()
            raise
    loud = [look for look in looks if part.measures and not look.quiet]
    who = f"other programs took {max(loud, key=lambda look: look.share).describe()}" if loud else ""
    if cancelled.is_set() or (loud and part.any_window):
        return Attempt(looks, who)
    problem = work.result()
    return Attempt(looks, "; ".join(filter(None, (problem, who))) if problem else "")


def make(
    part: Part, folder: Path, machine: Machine, command: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Makes a part, again if it was disturbed; returns its provenance.

    Raises:
        Refused: it was disturbed every time.
    """
    for number in range(1, part.attempts + 1):
        if part.measures:
            wait_until_quiet(machine, say)
        say(f"{part.name}: attempt {number}")
        before = machine.conditions()
        done = attempt(part, folder, machine)
        if not done.problem:
            shares = [look.share for look in done.looks]
            taken = {
                "mean": sum(shares) / len(shares) if shares else 0.0,
                "largest": max(shares, default=0.0),
                "windows": len(shares),
                "window_s": WINDOW_S,
                "limit": LIMIT,
            }
            return {
                "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "command": command,
                "machine": (facts := machine.facts()),
                "commit": facts["commit"],
                "attempts": number,
                "conditions": {"before": before, "after": machine.conditions()},
                "taken_by_others": taken if part.measures else None,
                "sha256": {name: digest(folder / name) for name in part.files},
            }
        say(f"{part.name}: disturbed, {done.problem}")
    raise Refused(
        f"{part.name}: disturbed {part.attempts} times; the last time {done.problem}. Stop them, then repeat"
    )


# ---------------------------------------------------------------- all or nothing


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def record(
    parts: Sequence[Part],
    out: Path,
    machine: Machine,
    command: str,
    say: Callable[[str], None] = print,
    check: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Makes parts into a copy of the folder, checks the copy, then puts it in the folder's place.

    Raises:
        Refused: the machine was disturbed, or the copy did not pass; the folder is as it was.
    """
    stage = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        stage.chmod(0o755)
        if out.is_dir():
            shutil.copytree(out, stage, dirs_exist_ok=True)
        listing = stage / PROVENANCE
        kept = msgspec.json.decode(listing.read_bytes())["parts"] if listing.is_file() else {}
        for part in parts:
            kept[part.name] = make(part, stage, machine, command, say)
        listing.write_bytes(msgspec.json.format(msgspec.json.encode({"schema": 1, "parts": kept}), indent=1))
        _remove_others(stage, kept)
        check(stage)
        _put_in_place(stage, out)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _remove_others(stage: Path, parts: Mapping[str, Any]) -> None:
    """Files of former versions, once every part knows its own."""
    known = {PROVENANCE}.union(*(part["sha256"] for part in parts.values()))
    if parts.keys() >= {part.name for part in PARTS}:
        for file in stage.rglob("*"):
            if file.is_file() and file.relative_to(stage).as_posix() not in known:
                file.unlink()


def _put_in_place(stage: Path, out: Path) -> None:
    aside = out.with_name(f".{out.name}-replaced-{os.getpid()}")
    existed = out.exists()
    if existed:
        out.rename(aside)
    try:
        stage.rename(out)
    except OSError:
        if existed:
            aside.rename(out)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def check_claims(folder: Path) -> None:
    """What the text says of the recordings must hold for a folder that has all of them.

    Raises:
        Refused: it does not; the folder is kept beside data/recordings/ to be looked at.
    """
    if not all((folder / name).is_file() for part in PARTS for name in part.files):
        print("some parts are missing, so what the text says of the recordings was not checked")
        return
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CLAIMS)]
    environment = {**os.environ, "PERFKIT_RECORDINGS": str(folder)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        kept = FOLDER.with_name(".recordings-refused")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept)
        print(done.stdout[-8000:], done.stderr[-2000:])
        raise Refused(f"what the text says of the recordings does not hold for these (kept in {kept})")


# ---------------------------------------------------------------- the parts

LADDER, TRACES = "cpu-quick.json", {"baseline": None, "data_loading": "data_loading"}
SIMULATED = {"sim-v100.json": "sim:v100"}
TIMELINE = "traces/sim-v100-data_loading.pt.trace.json.gz"
THROUGHPUT, WORKBENCH = {"cpu-quick.png": False, "cpu-quick-dark.png": True}, "workbench.png"


def make_ladder(folder: Path, cancelled: threading.Event) -> str:
    """The ladder of the README."""
    import perfkit
    from perfkit.results import recordings

    plan = perfkit.plan("photos", preset="quick", device="cpu")
    runs = perfkit.measure_ladder(plan, cancelled=cancelled, on_progress=_tell)
    if cancelled.is_set():
        return "stopped"
    failed = [f"{run.title}: {run.reason}" for run in runs if run.status in ("failed", "cancelled")]
    if failed:
        raise Refused("; ".join(failed))
    recordings.save(runs, folder / LADDER)
    return "; ".join(f"{run.title} was measured beside others" for run in runs if run.disturbed is not None)


def _tell(progress: Any) -> None:
    if progress.run:
        print(f"  {progress.run.title}: {progress.run.status}", flush=True)


def trace_name(stage: str) -> str:
    """The file of a stage's trace."""
    return f"traces/photos-{stage}.pt.trace.json.gz"


def make_traces(folder: Path, cancelled: threading.Event) -> str:
    """The two traces of chapter 09: the same compute threads in both, only the loader differs."""
    import perfkit

    for stage, rung in TRACES.items():
        path = folder / trace_name(stage)
        perfkit.profile(
            "photos", rung, out=path, preset="quick", device="cpu", settings={"cpu_threads": 1},
            cancelled=cancelled,
        )  # fmt: skip
    return ""


def make_simulated(folder: Path, cancelled: threading.Event) -> str:
    """The article's ladder with its GPU and a newer one, and a timeline: computed, not measured."""
    import perfkit
    from perfkit.results import recordings

    for name, device in SIMULATED.items():
        plan = perfkit.plan(device=device, host="article")
        runs = perfkit.measure_ladder(plan, cancelled=cancelled, on_progress=_tell)
        if failed := [f"{run.title}: {run.reason}" for run in runs if run.status in ("failed", "cancelled")]:
            raise Refused("; ".join(failed))
        recordings.save(runs, folder / name)
    perfkit.profile(None, "data_loading", out=folder / TIMELINE, device="sim:v100", host="article")
    return ""


def make_pictures(folder: Path, cancelled: threading.Event) -> str:
    """The README's pictures, from the recorded ladder."""
    from docs import pictures

    for name, dark in THROUGHPUT.items():
        pictures.throughput(folder / LADDER, folder / name, dark)
    pictures.workbench(folder / LADDER, folder / WORKBENCH)
    return ""


PARTS = (
    Part("traces", tuple(map(trace_name, TRACES)), make_traces, attempts=6),
    Part("ladder", (LADDER,), make_ladder, any_window=False),
    Part("simulated", (*SIMULATED, TIMELINE), make_simulated, measures=False),
    Part("pictures", (*THROUGHPUT, WORKBENCH), make_pictures, measures=False),
)


def _require_commit(commit: str | None, out: Path) -> None:
    """The provenance of what is shipped must name the code that was measured."""
    if out.absolute() == FOLDER and (commit is None or commit.endswith("-dirty")):
        raise Refused("this working tree has changes without a commit. Commit them first, or use --out")


def _share_plans(data: Path) -> None:
    """Plans of simulated steps are no measurements, and compiled ones take long: those in the cache serve."""
    from perfkit import machine

    plans = machine.cache_folder().absolute() / "plans"
    plans.mkdir(parents=True, exist_ok=True)
    (data / "cache").mkdir()
    (data / "cache" / "plans").symlink_to(plans)


def main(arguments: Sequence[str] | None = None) -> int:
    """Records; 1 if refused."""
    parser = argparse.ArgumentParser(description="Makes data/recordings/ again, on a quiet machine only.")
    parser.add_argument("--only", default="", help="parts: traces,ladder,simulated,pictures (default: all)")
    parser.add_argument(
        "--out", type=Path, default=FOLDER, help="the folder to replace (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    wanted = [name for name in options.only.split(",") if name] or [part.name for part in PARTS]
    if unknown := set(wanted) - {part.name for part in PARTS}:
        parser.error(f"no part {', '.join(sorted(unknown))}. Allowed: {', '.join(p.name for p in PARTS)}")
    parts = [part for part in PARTS if part.name in wanted]
    command = shlex.join(
        ["python", "-m", "docs.record", *(["--only", ",".join(wanted)] if options.only else [])]
    )
    with tempfile.TemporaryDirectory(prefix="perfkit-recordings-") as data:
        # Nothing of this user's: no stored A/A noise, no runs; children import this checkout.
        _share_plans(Path(data))
        os.environ.update(PERFKIT_DATA=data, PYTHONPATH=str(ROOT))
        os.environ.pop("PERFKIT_PRESET", None)
        try:
            _require_commit(Machine().facts()["commit"], options.out)
            record(parts, options.out.absolute(), Machine(), command, check=check_claims)
        except (Refused, PerfkitError) as problem:
            print(f"refused: {problem}. Nothing was written.", file=sys.stderr)
            return 1
    print(f"wrote {options.out}: {', '.join(wanted)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
