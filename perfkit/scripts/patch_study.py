"""The edits of a user's script that set switches, and the proof that they do what toggles did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfkit import machine
from perfkit.errors import InvalidValue
from perfkit.ladder import catalogue
from perfkit.recipe import Recipe, Value
from perfkit.results import parity
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import ScriptFacts
from perfkit.scripts.study import ScriptSource, script_plan
from perfkit.scripts.verification import Verification
from perfkit.studies.compare import Candidate, compare
from perfkit.studies.progress import Progress
from perfkit.studies.sources import opened

if TYPE_CHECKING:
    from perfkit.scripts.patch import Patch  # libcst takes long to load

BUDGET_S = 30.0
PRECISION = 0.03


def make(launch: Launch, settings: Mapping[str, Value], progress: Progress | None = None) -> Patch:
    """Runs a script for its first steps, and edits its files at the calls that were seen.

    Args:
        launch: how it is started.
        settings: the switches to set.
        progress: follows and stops it.

    Raises:
        PerfkitError: it cannot be started, failed, does not train, or is not valid Python.
    """
    from perfkit.scripts.patch import patch

    with opened(script_plan(launch), progress or Progress()) as source:
        assert isinstance(source, ScriptSource)
        facts = source.facts
    main = _main_file(launch, facts)
    at = _own_arguments(launch, main)
    result = patch(
        settings, facts.sites, str(main), launch.arguments[at:], facts.device, facts.settings, facts.refused
    )
    return replace(result, arguments=[*launch.arguments[:at], *result.arguments])


def _main_file(launch: Launch, facts: ScriptFacts) -> Path:
    """The file that is started: of a module or a launcher, the outermost one that was seen."""
    if launch.script:
        return launch.script.resolve()
    outermost = [site.frames[-1].file for site in facts.sites if site.frames]
    if not outermost:
        raise InvalidValue(
            f"no call of '{launch.program}' itself was seen: it trains inside a library",
            "Set that library's own options",
        )
    return Path(outermost[0])


def _own_arguments(launch: Launch, main: Path) -> int:
    """Where the script's own arguments begin, after those of a launcher such as torchrun."""
    for at, word in enumerate(launch.arguments):
        if launch.is_launcher and (launch.where / word).resolve() == main:
            return at + 1
    return 0


def patched(launch: Launch, result: Patch) -> Launch:
    """How the script is started with its edits, in files of a measuring run."""
    edited = {Path(change.path): change.after for change in result.changes}
    if launch.script and edited:  # its folder is where it imports from, so it must be there itself
        main = launch.script.resolve()
        edited.setdefault(main, main.read_bytes())
    program = str(launch.script.resolve()) if launch.script and edited else launch.program
    return replace(
        launch, program=program, arguments=tuple(result.arguments), replaced=tuple(sorted(edited.items()))
    )


def verify(
    launch: Launch,
    result: Patch,
    settings: Mapping[str, Value],
    budget_s: float = BUDGET_S,
    precision: float = PRECISION,
    preset: str | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Measures the patched script against the script with the same switches set from outside.

    Both train the same, so that they are as fast, and their losses are equal.

    Args:
        launch: how the script is started.
        result: its edits.
        settings: the switches.
        budget_s: seconds of rounds.
        precision: half width of the interval / ratio at which measuring ends.
        preset: how large blocks are.
        progress: follows and stops it.

    Raises:
        PerfkitError: one of them could not be measured.
    """
    made = {name: value for name, value in settings.items() if name not in result.refused}
    outside = Candidate("set from outside", changes=made)
    inside = Candidate("patched")
    plan = script_plan(launch, preset, more={inside.title: patched(launch, result)})
    comparison = compare(
        outside, inside, plan, budget_s, precision, pairs=1, ceiling=False, progress=progress
    )
    base = Recipe.from_dict(comparison.b.recipe)
    # The number of samples in a step is the same on both sides here.
    set_to = base.replace(**{name: value for name, value in made.items() if name != "batch_size"})
    # From outside the model's call is compiled, in the patch the model: other kernels, as if only one were.
    exactness = catalogue.exactness(set_to, base.replace(compile=False) if made.get("compile") else base)
    check = parity.losses(
        comparison.b.losses, comparison.a.losses, exactness, made.get("amp", "off") != "off"
    )
    return Verification(comparison.ratio, comparison.rounds, check)


def write(result: Patch) -> list[Path]:
    """Writes the edited files in place, each whole or not at all; their modes stay.

    Raises:
        InvalidValue: a file has changed since it was read.
        OSError: a file cannot be written.
    """
    for change in result.changes:
        if Path(change.path).read_bytes() != change.before:
            raise InvalidValue(f"{change.path} has changed meanwhile", "Run it again; nothing was written")
    for change in result.changes:
        path = Path(change.path).resolve()
        mode = path.stat().st_mode & 0o7777
        machine.write_atomically(path, change.after)
        path.chmod(mode)
    return [Path(change.path) for change in result.changes]
