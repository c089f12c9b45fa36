"""All that only a GPU can show, in one run: `make gpu`, or `python -m benchmarks.gpu [--minutes 12]`.

Each part is a command of its own with a log of its own: one that fails, or that takes too long, does not
keep the rest from running. It ends with a page, and with one file to send: `build/gpu/gpu-NAME.zip` (16 MiB
at most) holds the page, the recordings with their provenance, the traces and the logs. Nothing is fetched
from the network. It exits with 1 where a part failed, with 3 where the time was too short for all of them.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfkit import machine
from perfkit.errors import PerfkitError
from perfkit.machine import devices
from perfkit.process.tree import Tree
from perfkit.results import recordings
from perfkit.show import html, tables, terminal
from perfkit.show.document import Code, Content, Notice, Section, Table

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "gpu"
WORKLOAD = "cifar_resnet18"
BYTES_PER_SAMPLE = 22_000_000
"""Of that workload in float32 at 224 pixels, roughly; it grows with the number of pixels."""
LARGEST_BATCH, TOGETHER = 1024, 3
"""Of the ladder at `paper`; how many such trainings must fit beside each other."""
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


def parts(folder: Path, memory_bytes: int | None, preset: str) -> list[Part]:
    """Everything, in this order: what is short and tells most comes first."""

    def perfkit(command: str, *words: str) -> list[str]:
        return [sys.executable, "-m", "perfkit", command, *words]

    def out(name: str) -> str:
        return str(folder / name)

    where = ["--workload", WORKLOAD, "--device", "cuda"]
    sized = [*where, "--preset", preset]
    if preset == "paper":
        sized += ["--option", f"image_size={image_size(memory_bytes)}"]
    here = [sys.executable, "-m", "benchmarks.gpu"]
    pytest = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-n", "0", "tests/gpu"]
    half = "amp" if devices.accelerators().bf16 else "amp_fp16"
    smoke = perfkit("run", *where, "--preset", "smoke", "--keep-all", "-o", out("smoke.json"))
    ladder = perfkit("run", *sized, "--keep-all", "-o", out("ladder.json"), "--html", out("ladder.html"))
    traces = []
    for stage in ("baseline", "pinning", half):
        words = perfkit("profile", *sized, "--stage", stage, "-o", out(f"trace-{stage}.pt.trace.json.gz"))
        traces.append(Part(f"trace-{stage}", f"three steps of {stage}, profiled", words, 45))
    facts = perfkit("doctor", "--device", "cuda", "--json", out("facts.json"))
    memory = perfkit("memory", *sized, "--json", out("memory.json"))
    export = perfkit("export", *sized, "--stage", half, "-o", out("bare.py"))
    return [
        Part("facts", "what is here", facts, 60),
        Part("smoke", "the ladder at its smallest", smoke, 120),
        Part("tests", "tests/gpu", pytest, 200),
        Part("ladder", f"the ladder at {preset}", ladder, 270),
        *traces,
        Part("parity", f"does {half} train the same", [*here, "--parity", half], 45),
        Part("syncs", "copies and waits of a step", [*here, "--syncs", out("syncs.json")], 30),
        Part("memory", "memory of a step", memory, 30),
        Part("export", "a script is written", export, 30),
        Part("bare", "it trains without perfkit", [sys.executable, out("bare.py")], 60),
    ]


# ---------------------------------------------------------------- running


def run(part: Part, folder: Path, limit_s: float) -> Outcome:
    """Runs a part until its end or its limit; then it is ended with all that it started."""
    start, log = time.monotonic(), folder / f"{part.name}.log"
    if limit_s <= 0:
        return Outcome(part, LEFT_OUT, 0.0, "no time was left for it")
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


def report(outcomes: Sequence[Outcome], folder: Path) -> list[Content]:
    """What passed and what did not, the last lines of what did not, and the ladder that was measured last."""
    rows = [[one.part.title, one.state, f"{one.seconds:.0f} s", _command(one.part)] for one in outcomes]
    bad = [one for one in outcomes if one.state not in (OK, LEFT_OUT)]
    logs = [Section(f"{one.part.title}: {one.state}", [Code(one.log)]) for one in bad]
    return [
        machine.describe(machine.facts()),
        Table(("part", "state", "time", "command"), rows, "What was run"),
        *logs,
        *_ladder(folder),
    ]


def _command(part: Part) -> str:
    """What was run, without this machine's folders."""
    return shlex.join(Path(word).name if Path(word).is_absolute() else word for word in part.words)


def _ladder(folder: Path) -> list[Content]:
    for name in ("ladder.json", "smoke.json"):
        if (file := folder / name).is_file():
            try:
                return tables.sections(recordings.find(str(file)))
            except PerfkitError as problem:
                return [Notice(f"{name}: {problem}")]
    return [Notice("No ladder was measured.")]


def pack(folder: Path, name: str, most: int = MOST_BYTES) -> Path:
    """One file of what is there, the smallest first; what does not fit is left out, and its name is kept."""
    path, left, size = folder / f"gpu-{name}.zip", list[str](), 0
    files = [file for file in folder.iterdir() if file.is_file() and file.suffix != ".zip"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files, key=lambda file: file.stat().st_size):
            before = archive.fp.tell() if archive.fp else 0
            if size + file.stat().st_size > most:
                left.append(f"{file.name} ({file.stat().st_size:,} bytes)")
                continue
            archive.write(file, file.name)
            size += (archive.fp.tell() if archive.fp else 0) - before
        archive.writestr("left_out.txt", "\n".join(left))
    return path


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
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--parity", help=argparse.SUPPRESS)
    parser.add_argument("--syncs", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.parity:
        return parity(given.parity)
    if given.syncs:
        return syncs(given.syncs)
    if not devices.accelerators().cuda:
        print("torch finds no CUDA device here: `perfkit doctor` says why", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    facts = machine.facts()
    memory = next((gpu["memory_bytes"] for gpu in facts["gpus"]), None)
    every = parts(given.out, memory, given.preset)
    if given.only:
        every = [part for part in every if part.name in given.only.split(",")]
    outcomes = list[Outcome]()
    try:
        for outcome in run_all(every, given.out, given.minutes):
            outcomes.append(outcome)
    except KeyboardInterrupt:
        print("stopped; what was finished is written")
    contents = report(outcomes, given.out)
    (given.out / "report.html").write_text(html.page("perfkit on a GPU", contents), "utf-8")
    path = pack(given.out, gpu_name(facts))
    terminal.show(contents[:2])
    print(f"The page: {given.out / 'report.html'}\nThe file to send: {path} ({path.stat().st_size:,} bytes)")
    return exit_code(outcomes)


def parity(stage: str) -> int:
    """Whether a stage's own switches train the same as the plain program."""
    from perfkit.additions.parity import study
    from perfkit.recipe import Recipe
    from perfkit.studies import compare, sources

    plan = sources.plan(WORKLOAD, stages=["baseline"], preset="smoke", device="cuda")
    side = compare.candidate(stage, plan)
    found = study.parity(plan, side.title, Recipe().replace(**side.changes))
    print(found.describe())
    return int(not found.ok)


def syncs(file: Path) -> int:
    """Copies and waits of a training that is known to have some."""
    from perfkit.additions.inside import looks

    found = looks.syncs(WORKLOAD, preset="smoke", device="cuda")
    terminal.show([looks.sync_table(found)])
    places = [{name: getattr(place, name) for name in place.__struct_fields__} for place in found.places]
    file.write_text(json.dumps(places, indent=1), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
