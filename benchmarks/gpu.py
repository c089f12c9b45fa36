"""All that only a GPU can show, in one run: `make gpu`, or `python -m benchmarks.gpu [--minutes 12]`.

Each part is a command of its own with a log of its own: one that fails, or that takes too long, does not
keep the rest from running. It ends with a page, and with one file to send: `gpu-NAME.zip`, in a new folder of
`build/gpu`, has the page, the recordings with their provenance, the traces and the logs, at most 16 MiB.
Nothing is fetched from the network. It exits with 1 where a part failed, with 3 where the time was too short
for all of them, with 130 after Ctrl-C.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfkit import machine
from perfkit.additions.inside import SYNCS, looks
from perfkit.additions.parity import study
from perfkit.additions.shared.looking import prepared
from perfkit.additions.trace.profile import profile, summary
from perfkit.errors import PerfkitError
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import LADDER
from perfkit.machine import devices
from perfkit.process.tree import Tree
from perfkit.recipe import Recipe
from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.show import html, tables, terminal
from perfkit.show.document import Code, Content, Notice, Section, Table
from perfkit.studies import compare, planning

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "gpu"
WORKLOAD = "cifar_resnet18"
BYTES_PER_SAMPLE = 22_000_000
"""Of that workload in float32 at 224 pixels, roughly; it grows with the number of pixels."""
LARGEST_BATCH, TOGETHER = 512, 6
"""Of the ladder at `paper`; how many such trainings must fit beside each other. A group has three, and
their contexts and workspaces may take as much again."""
HALF = "amp"
"""The stage that computes in 16 bits: bfloat16 where the card has it, else float16."""
PROFILED = ("baseline", "data_loading", "pinning", "channels_last", HALF)
"""What is profiled: before and after batches lie in page-locked memory, and before and after AMP."""
BARE = ("baseline", HALF)
"""Whose exported scripts are run."""
BUDGET = 0.75
"""Of a ladder's limit: what it plans with. Its first group starts later, and its last one may end later."""
MINUTES = 12.0
"""For all parts together; with more, each may take longer in proportion."""
GRACE_S = 25.0
"""How long a part that is out of time may take to write what it has."""
LAST_LINES = 15
MOST_BYTES = 16 << 20
OK, FAILED, LATE, LEFT_OUT = "passed", "failed", "out of time", "left out"


@dataclass(frozen=True)
class Part:
    """One command, and for about how many seconds it may run; all are scaled to the time that there is."""

    name: str
    title: str
    words: Sequence[str]
    limit_s: float
    has_budget: bool = False
    """Whether it takes `--budget`, by which it has something of every stage, however slow the card is."""


@dataclass(frozen=True)
class Outcome:
    """How a part ended."""

    part: Part
    state: str
    seconds: float
    log: str
    """Its last lines."""


def image_size(memory_bytes: int | None) -> int:
    """The largest image, in pixels, with which the largest batches of the ladder fit into a GPU's memory."""
    if not memory_bytes:
        return 64
    share = memory_bytes / (TOGETHER * LARGEST_BATCH * BYTES_PER_SAMPLE)
    return max(32, min(224, int(224 * share**0.5) // 32 * 32))


def size(preset: str) -> dict[str, int]:
    """The workload's options at a preset: `paper` is sized to the card."""
    memory = next((gpu["memory_bytes"] for gpu in machine.facts()["gpus"]), None)
    return {"image_size": image_size(memory)} if preset == "paper" else {}


def parts(folder: Path, preset: str) -> list[Part]:
    """Everything, in this order: what is short and tells most comes first.

    A part may take the seconds that it needs on a slow machine of two cores, such as Colab's.
    """

    def perfkit(command: str, *words: str) -> list[str]:
        return [sys.executable, "-m", "perfkit", command, *words]

    def own(look: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "benchmarks.gpu",
            "--look",
            look,
            "--preset",
            preset,
            "--out",
            str(folder),
        ]

    def out(name: str) -> str:
        return str(folder / name)

    where = ["--workload", WORKLOAD, "--device", "cuda"]
    sized = [*where, "--preset", preset]
    for name, value in size(preset).items():
        sized += ["--option", f"{name}={value}"]
    facts = perfkit("doctor", "--device", "cuda", "--json", out("facts.json"))
    pytest = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-n", "0", "tests/gpu"]
    smoke = perfkit("run", *where, "--preset", "smoke", "--keep-all", "-o", out("smoke.json"))
    ladder = perfkit("run", *sized, "--keep-all", "-o", out("ladder.json"))
    memory = perfkit("memory", *sized, "--json", out("memory.json"))
    has_budget = catalogue.preset(preset, "cuda").rule.budget is not None
    return [
        Part("facts", "what is here", facts, 30),
        Part("tests", "tests/gpu", pytest, 130),
        Part("smoke", "the ladder at its smallest", smoke, 80),
        Part("ladder", f"the ladder at {preset}", ladder, 220, has_budget=has_budget),
        Part("traces", "three steps of some stages, profiled", own("traces"), 80),
        Part("parity", f"does {HALF} train the same", own("parity"), 45),
        Part("syncs", "copies and waits of a step", own("syncs"), 25),
        Part("memory", "memory of a step", memory, 25),
        Part("bare", "exported scripts train without perfkit", own("bare"), 60),
    ]


# ---------------------------------------------------------------- running


def run(part: Part, folder: Path, limit_s: float) -> Outcome:
    """Runs a part until its end or its limit; then it is ended with all that it started."""
    start, log = time.monotonic(), folder / f"{part.name}.log"
    if limit_s <= 0:
        return Outcome(part, LEFT_OUT, 0.0, "no time was left for it")
    if part.has_budget:
        part = replace(part, words=[*part.words, "--budget", str(max(1, round(BUDGET * limit_s)))])
    with log.open("wb") as output:
        process = subprocess.Popen(
            part.words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            state = FAILED if process.wait(limit_s) else OK
        except subprocess.TimeoutExpired:
            state = LATE
            _end(process)
        except BaseException:  # Ctrl-C: nothing is left running
            _end(process)
            raise
    lines = log.read_text("utf-8", errors="replace").splitlines()[-LAST_LINES:]
    return Outcome(part, state, time.monotonic() - start, "\n".join(lines))


def _end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C would: a ladder keeps the stages that it has measured. Then everything goes."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        Tree(process.pid).end()
        process.wait()


def run_all(every: Sequence[Part], folder: Path, minutes: float) -> Iterator[Outcome]:
    """Runs parts one after the other, and says of each how it went.

    Each may take its share of the time that is left: a long one takes none from those after it.
    """
    until = time.monotonic() + 60 * minutes - GRACE_S
    for number, part in enumerate(every):
        print(f"{part.title} …", flush=True)
        share = part.limit_s / sum(later.limit_s for later in every[number:])
        outcome = run(part, folder, share * (until - time.monotonic()))
        print(f"  {outcome.state} after {outcome.seconds:.0f} s", flush=True)
        yield outcome


# ---------------------------------------------------------------- the page and the file


def report(outcomes: Sequence[Outcome], folder: Path, file: str = "") -> list[Content]:
    """What passed and what did not, what to do now, the last lines of what failed, and the ladder."""
    rows = [[one.part.title, one.state, f"{one.seconds:.0f} s", _command(one.part)] for one in outcomes]
    bad = [one for one in outcomes if one.state not in (OK, LEFT_OUT)]
    logs = [Section(f"{one.part.title}: {one.state}", [Code(one.log)]) for one in bad]
    return [
        machine.describe(machine.facts()),
        verdict(outcomes),
        f"Please send {file}. It has this page, what was measured, the traces and the logs." if file else "",
        Table(("part", "state", "time", "command"), rows, "What was run"),
        *_ladder(folder),
        *logs,
    ]


def verdict(outcomes: Sequence[Outcome]) -> str:
    """How many parts passed, and which did not."""
    count = sum(one.state == OK for one in outcomes)
    words = [f"{count} of {len(outcomes)} parts passed."]
    for state, remark in (
        (FAILED, "The end of each log is below: what is wrong is perfkit's to repair, and not yours."),
        (LATE, 'What they had measured is kept. For more: make gpu ARGS="--minutes 25".'),
        (LEFT_OUT, "No time was left for them."),
    ):
        if titles := [one.part.title for one in outcomes if one.state == state]:
            words.append(f"{state.capitalize()}: {', '.join(titles)}. {remark}")
    return " ".join(words)


def _command(part: Part) -> str:
    """What was run, without this machine's folders."""
    return shlex.join(Path(word).name if Path(word).is_absolute() else word for word in part.words)


def _ladder(folder: Path) -> list[Content]:
    """The ladder at its size, else the small one; which of its stages there was no time for."""
    for name in recordings.PACKED:
        if (file := folder / name).is_file():
            try:
                runs = recordings.find(str(file))
            except PerfkitError as problem:
                return [Notice(f"{name}: {problem}")]
            return [*_missing(runs), *tables.report(runs)]
    return [Notice("No ladder was measured.")]


def _missing(runs: Sequence[Run]) -> list[Content]:
    known = {run.stage for run in runs if run.status != "cancelled"}
    missing = [stage for stage in LADDER if stage not in known]
    if not missing:
        return []
    return [Notice(f"The time was over before these stages were measured: {', '.join(missing)}.")]


def pack(folder: Path, name: str, most: int = MOST_BYTES) -> Path:
    """One file of what is there, the smallest first; what does not fit is left out, and its name is kept."""
    path, left, size = folder / name, list[str](), 0
    files = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith("part-")]
    files = [file for file in files if file != path]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files, key=lambda file: file.stat().st_size):
            before = archive.fp.tell() if archive.fp else 0
            if size + file.stat().st_size > most:
                left.append(f"{file.name} ({file.stat().st_size:,} bytes)")
                continue
            archive.writestr(file.name, _public(file))
            size += (archive.fp.tell() if archive.fp else 0) - before
        archive.writestr("left_out.txt", "\n".join(left))
    return path


def _public(file: Path) -> bytes:
    """What is in a file, without this machine's folders: it will be sent."""
    content = file.read_bytes()
    if file.suffix == ".gz":
        return content
    for folder, name in ((ROOT, b"."), (Path.home(), b"~")):
        if len(folder.parts) > 1:  # a container's user may have / for a home
            content = content.replace(bytes(folder), name)
    return content


def gpu_name(facts: dict[str, Any]) -> str:
    """A name for files: that of the first GPU."""
    names = [gpu["name"] or "GPU" for gpu in facts["gpus"]] or devices.accelerators().cuda or ["none"]
    return re.sub(r"\W+", "-", names[0]).strip("-").lower()


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 where every part passed, 1 where one failed, 3 where time was too short to know."""
    states = {outcome.state for outcome in outcomes}
    if FAILED in states:
        return 1
    return 3 if states & {LATE, LEFT_OUT} else 0


def main() -> int:
    """The whole run, and its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts together")
    parser.add_argument("--preset", default="paper", help="of the ladder, its traces and the memory")
    parser.add_argument("--only", help="parts: facts,smoke …")
    parser.add_argument("--out", type=Path, help="a new folder")
    parser.add_argument("--look", choices=OWN, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.out or OUT / time.strftime("%Y%m%d-%H%M%S")
    if given.look:
        return OWN[given.look](folder, given.preset)
    if not devices.accelerators().cuda:
        print("torch finds no CUDA device here: `perfkit doctor` says why", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):  # what is there would pass for what this run has measured
        print(f"{folder} is not empty: name a new folder", file=sys.stderr)
        return 2
    every = parts(folder, given.preset)
    if given.only:
        every = [part for part in every if part.name in given.only.split(",")]
    return measure(every, folder, given.minutes)


def measure(every: Sequence[Part], folder: Path, minutes: float) -> int:
    """Runs parts, writes the page and the file to send, and says where they are; the exit code."""
    outcomes, name, stopped = list[Outcome](), f"gpu-{gpu_name(machine.facts())}.zip", False
    try:
        for outcome in run_all(every, folder, minutes):
            outcomes.append(outcome)
    except KeyboardInterrupt:
        stopped = True
        print("stopped; what was finished is written")
    contents = report(outcomes, folder, name)
    (folder / "report.html").write_text(html.page("perfkit on a GPU", contents), "utf-8")
    path = pack(folder, name)
    terminal.show(contents[:4])
    print(f"The page: {folder / 'report.html'}\nThe file to send: {path} ({path.stat().st_size:,} bytes)")
    return 130 if stopped else exit_code(outcomes)


# ---------------------------------------------------------------- looks of its own


def traces(folder: Path, preset: str) -> int:
    """Profiles some stages; one that fails does not keep the others from it."""
    code = 0
    for stage in PROFILED:
        file = folder / f"trace-{stage}.pt.trace.json.gz"
        try:
            made = profile(WORKLOAD, stage, out=file, preset=preset, device="cuda", options=size(preset))
            print(f"{stage}: {summary(made.analysis)}", flush=True)
        except PerfkitError as problem:
            print(f"{stage}: {problem}", flush=True)
            code = 1
    return code


def parity(folder: Path, preset: str) -> int:
    """Whether 16 bits train the same as the plain program."""
    plan = planning.plan(WORKLOAD, stages=["baseline"], preset="smoke", device="cuda")
    side = compare.candidate(HALF, plan)
    found = study.parity(plan, side.title, Recipe().replace(**side.changes))
    print(found.describe())
    return int(not found.ok)


def syncs(folder: Path, preset: str) -> int:
    """Copies and waits of a training that is known to have some."""
    with prepared(WORKLOAD, None, {"preset": "smoke", "device": "cuda"}) as (session, used):
        found = session.ask_training(used, SYNCS, warm=False, steps=4)
    terminal.show([looks.sync_table(found)])
    places = [{name: getattr(place, name) for name in place.__struct_fields__} for place in found.places]
    (folder / "syncs.json").write_text(json.dumps(places, indent=1), "utf-8")
    return 0


def bare(folder: Path, preset: str) -> int:
    """Exports the scripts of some stages, and runs each by itself."""
    code = 0
    for stage in BARE:
        file = folder / f"bare-{stage}.py"
        recipe = [] if stage == "baseline" else ["--stage", stage]
        where = ["--workload", WORKLOAD, "--device", "cuda", "--preset", preset]
        options = [word for name, value in size(preset).items() for word in ("--option", f"{name}={value}")]
        export = [sys.executable, "-m", "perfkit", "export", *where, *options, *recipe, "-o", str(file)]
        for words in (export, [sys.executable, str(file)]):
            done = subprocess.run(words, cwd=ROOT, check=False).returncode
            if done:
                print(f"{stage}: exit code {done}", flush=True)
                code = 1
                break
    return code


OWN: dict[str, Callable[[Path, str], int]] = {
    "traces": traces,
    "parity": parity,
    "syncs": syncs,
    "bare": bare,
}
"""Parts that no command of perfkit does by itself: each gets the folder and the preset."""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped; what was finished is kept", file=sys.stderr)
        sys.exit(130)
