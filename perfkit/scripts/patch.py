"""The edit of a user's script that sets switches, and the proof that it does what they do from outside."""

import difflib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from perfkit.errors import InvalidValue
from perfkit.recipe import Value, switches
from perfkit.results import parity
from perfkit.results.parity import Check
from perfkit.results.stats import Ratio
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import ScriptFacts
from perfkit.scripts.patch_edits import Patcher
from perfkit.scripts.patch_source import COMMAND_LINE, Refused
from perfkit.scripts.study import ScriptSource, script_plan
from perfkit.studies.compare import Candidate, compare
from perfkit.studies.sources import Progress

BUDGET_S = 30.0
PRECISION = 0.03


class Change(NamedTuple):
    """A file, before and after."""

    path: Path
    before: bytes
    after: bytes


@dataclass(frozen=True)
class Patch:
    """What to change so that a script has switches by itself.

    `launch`: how it is started from now on, for a measuring run with the edited files. `refused`: switches
    that need an edit by hand, and which.
    """

    launch: Launch
    changes: list[Change] = field(default_factory=list)
    edited: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """Where `patch -p1` applies the diff: the script's working directory, or the next folder above it."""
        return Path(os.path.commonpath([self.launch.where.resolve(), *(each.path for each in self.changes)]))

    def diff(self) -> str:
        """A unified diff for `git apply` or `patch -p1` in `root`; empty without edits."""
        texts: list[str] = []
        for change in self.changes:
            name = change.path.relative_to(self.root).as_posix()
            # Lines end at line feeds only, so that carriage returns and form feeds are kept.
            before, after = ([*io.StringIO(data.decode(), newline="\n")] for data in change[1:])
            texts += difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        return "".join(
            text if text[-1] == "\n" else f"{text}\n\\ No newline at end of file\n" for text in texts
        )


def make(launch: Launch, settings: Mapping[str, Value], progress: Progress | None = None) -> Patch:
    """Runs a script for its first steps, and edits its files, in memory, at the calls that were seen."""
    with ScriptSource(script_plan(launch), progress or Progress(), launch) as source:
        facts = source.facts
    return edit(launch, settings, facts)


def edit(launch: Launch, settings: Mapping[str, Value], facts: ScriptFacts) -> Patch:
    """The edits of a script's files; they stay as they are."""
    main = _main_file(launch, facts)
    patcher = Patcher(facts, str(main))
    result = Patch(launch)
    for name in (name for name in switches() if name in settings):
        try:
            is_edited = patcher.set(name, settings[name])
            (result.edited if is_edited else result.already).append(name)
        except Refused as reason:
            result.refused[name] = str(reason)
    changes = [
        Change(Path(source.path), source.data, after)
        for source in patcher.sources.values()
        if (after := source.edited(patcher.edits)) != source.data
    ]
    options = [word for edit in patcher.edits if edit.path == COMMAND_LINE for word in edit.text.split()]
    launch = replace(launch, arguments=(*launch.arguments, *options))
    if changes:
        files = {change.path: change.after for change in changes}
        if launch.script:  # its folder is where it imports from, so it must be there itself
            files.setdefault(main, main.read_bytes())
            launch = replace(launch, program=str(main))
        launch = replace(launch, replaced=tuple(sorted(files.items())))
    return replace(result, launch=launch, changes=changes)


def _main_file(launch: Launch, facts: ScriptFacts) -> Path:
    """The file that is started: of a module, the outermost one that was seen."""
    if launch.script:
        return launch.script.resolve()
    outermost = [site.frames[-1].file for site in facts.sites if site.frames]
    if not outermost:
        what = f"no call of '{launch.program}' itself was seen: it trains inside a library"
        raise InvalidValue(what, "Set that library's own options")
    return Path(outermost[0])


def verify(
    result: Patch,
    launch: Launch,
    settings: Mapping[str, Value],
    budget_s: float = BUDGET_S,
    progress: Progress | None = None,
) -> Check:
    """Measures the patched script against the script of `launch` with the switches set from outside.

    Both train the same: their losses are equal, and no difference in speed is measured. `budget_s`: seconds
    of rounds.
    """
    changes = {name: value for name, value in settings.items() if name not in result.refused}
    outside, inside = Candidate("set from outside", changes=changes), Candidate("patched")
    plan = script_plan(launch, more={inside.title: result.launch})
    comparison = compare(
        outside, inside, plan, budget_s, PRECISION, pairs=1, ceiling=False, progress=progress
    )
    # From outside the model's call is compiled, in the patch the model: other kernels, other rounding.
    is_amp = changes.get("amp", "off") != "off"
    losses = parity.losses(comparison.b.losses, comparison.a.losses, "tolerance", is_amp)
    return verdict(comparison.ratio, comparison.rounds, losses)


def verdict(ratio: Ratio, rounds: int, losses: Check) -> Check:
    """Whether a patch does what its switches do from outside: `ratio` of samples/s, and the losses."""
    ok = losses.ok and ratio.verdict not in ("faster", "slower")
    busy = "speed undecided, as other programs ran: " * (ratio.verdict == "disturbed")
    speed = f"{ratio.ratio:.3g} times ({ratio.low:.3g} to {ratio.high:.3g}, {rounds} rounds) as fast"
    text = f"losses {losses.evidence}; {busy}{speed} as with the switches set from outside"
    return Check("patch", ok, f"{'verified' if ok else 'NOT verified'}: {text}")
