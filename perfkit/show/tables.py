"""A session of runs as sections: the ladder, what each stage showed, pictures, evidence, details."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfkit import machine
from perfkit.results.parity import Parity
from perfkit.results.run import Run
from perfkit.results.store import ORIGIN
from perfkit.show import figures, results, simulated, units
from perfkit.show.document import Bullets, Code, Content, Notice, Section, Table
from perfkit.show.sentences import SIGNS, name, notices, outcome, verdicts
from perfkit.show.tables_simulated import beside_published

COLUMNS = (
    "stage", "samples/s", "× previous", "× baseline", "waits for data", "step time", "pipeline efficiency",
    "peak memory", "bytes/sample", "note",
)  # fmt: skip
_FEW = tuple(name for name in COLUMNS if name not in ("pipeline efficiency", "bytes/sample"))
NARROW = ("stage", "samples/s", "× previous", "× baseline", "waits for data", "peak memory")
_IN_WORDS = ("faster", "slower")
_AGAIN = "A/A"


def sections(runs: Sequence[Run], scripts: Mapping[str, str] | None = None) -> list[Content]:
    """The whole report of a session.

    Args:
        runs: in the order of the ladder.
        scripts: stage → its training script.
    """
    facts = json.dumps(runs[0].machine if runs else {}, indent=1, ensure_ascii=False, default=str)
    codes = [Section(stage, [Code(source)], folded=True) for stage, source in (scripts or {}).items()]
    return [
        *summary(runs),
        *map(Notice, notices(runs)),
        ladder(runs),
        *beside_published(runs),
        Section("What each stage showed", [Bullets(verdicts(runs))]),
        Section("Figures", [figures.view(name, runs) for name in figures.VIEWS]),
        Section("Evidence that the switches are in effect", evidence(runs)),
        Section("Warnings and facts", [Bullets(notes(runs) or ["none"])]),
        Section("Every switch of every stage", [_settings(runs)], folded=True),
        *([Section("Scripts", codes, folded=True)] if codes else []),
        Section("Everything recorded about the machine", [Code(facts)], folded=True),
    ]


def summary(runs: Sequence[Run]) -> list[str]:
    """Machine, settings and the overall result, one line each."""
    if not runs:
        return ["Nothing was measured yet."]
    first, last = runs[0], next((run for run in reversed(results.stages(runs)) if results.rate(run)), None)
    options = ", ".join(f"{name}={value}" for name, value in first.options.items())
    settings = [f"workload {first.workload}", options, f"preset {first.preset}", f"device {first.device}"]
    settings += [f"seed {first.seed}", f"session {first.session}", first.created]
    lines = [machine.describe(first.machine), " · ".join(filter(None, settings))]
    overall = results.speedup(last, "baseline") if last else None
    if last and overall:
        gain = f"{units.ratio(overall)} {overall.verdict}{' (simulated)' * bool(last.simulated)}"
        lines.append(f"{name(last)}, the last stage measured, against the baseline: {gain}.")
    return lines


def ladder(runs: Sequence[Run]) -> Table:
    """One row for each run."""
    rows = [row(run) for run in runs]
    meanings = {sign: verdict for verdict, sign in SIGNS.items()} | {_AGAIN: "equal processes"}
    signs = dict.fromkeys(cell.rpartition(" ")[2] for cells in rows for cell in cells)
    legend = " · ".join(f"{sign}: {meanings[sign]}" for sign in signs if sign in meanings)
    if simulated.any_of(runs):
        legend = " · ".join(filter(None, (legend, simulated.LEGEND)))
    return Table(
        COLUMNS, rows, "The ladder, simulated" if simulated.any_of(runs) else "The ladder", legend, NARROW
    )


def short_ladder(runs: Sequence[Run], large: bool = False) -> Table:
    """The columns that fit beside a notebook's margin, and on paper; fewer in large type.

    Where every stage has the same one before it, one column says against which: `× before`.
    """
    columns, stages = list(NARROW if large else _FEW), [run for run in runs if not results.is_again(run)]
    if not all(against(run, "previous") == against(run, "baseline") for run in stages):
        return ladder(runs).only(columns)
    columns.remove("× previous")
    first = name(runs[0])
    shown = [f"× {first}" if column == "× baseline" and len(first) < 12 else column for column in columns]
    return replace(ladder(runs).only(columns), columns=shown)


def row(run: Run) -> list[str]:
    """The cells of a run; what was not measured is `n/a`, and the note says why."""
    rate, measured = results.rate(run), run.status == "ok"
    return [
        name(run),
        _marked(simulated.estimate(run, rate), run) if rate else outcome(run).partition(":")[0],
        against(run, "previous"),
        against(run, "baseline"),
        simulated.cell(run, units.percent(results.wait_share(run))),
        simulated.step_time(run),
        simulated.cell(run, units.percent(results.efficiency(run))),
        simulated.memory(run, units.size(run.peak_memory_bytes if measured else None)),
        bytes_per_sample(run),
        note(run),
    ]


def against(run: Run, role: str) -> str:
    """`1.34× (1.28–1.41) faster`; a dash for a stage with nothing before it."""
    if ratio := results.speedup(run, role):
        again = results.is_again(run) and ratio.verdict != "disturbed"
        word = ratio.verdict if ratio.verdict in _IN_WORDS else SIGNS[ratio.verdict]
        return f"{units.ratio(ratio)} {_AGAIN if again else word}"
    alone = not run.pairings or results.is_again(run)
    return "–" if results.rate(run) and alone else units.NOT_AVAILABLE


def _marked(text: str, run: Run) -> str:
    return f"{text} {SIGNS['disturbed']}" if results.disturbed(run) is not None else text


def bytes_per_sample(run: Run) -> str:
    """Bytes of a sample in the loader's batch; and those copied to the device, where they differ."""
    batch, crossing = run.batch_bytes_per_sample, run.h2d_bytes_per_sample
    if run.status != "ok" or batch is None:
        return units.NOT_AVAILABLE
    return f"{batch:,} B" if crossing in (None, batch) else f"{batch:,} B ({crossing:,} B cross)"


def note(run: Run) -> str:
    """Why a row has no numbers, or what disturbed it and how many warnings it has."""
    count = len(run.warnings)
    notes = ["disturbed"] if results.disturbed(run) is not None else []
    notes += [f"{count} warning{'s' if count > 1 else ''}"] if count else []
    return outcome(run) or "; ".join(notes)


def evidence(runs: Sequence[Run]) -> list[Content]:
    """The state of the switches in the built objects: first those that are not as set, then the changes."""
    columns = ("stage", "switch", "state", "evidence")
    rows = [
        (name(run), m.switch, "as set" if m.ok else "NOT as set", m.evidence)
        for run in runs for m in run.mechanism
    ]  # fmt: skip
    wrong = [row for row in rows if row[2] != "as set"]
    if not rows:
        return []
    count = f"{len(rows) - len(wrong)} of {len(rows)} checks found the switch as the recipe sets it."
    alarm = [Table(columns, wrong, "Switches that are not as set")] if wrong else []
    return [count, *alarm, Bullets(_changes(runs)), Section("Every check", [Table(columns, rows)], True)]


def evidence_of(run: Run, parity: Parity | None = None) -> Table:
    """Every check of one run; with `parity`, whether it still trains the same too."""
    measured = run.status == "ok"
    rows = [[m.switch, "as set" if m.ok else "NOT as set", m.evidence] for m in run.mechanism * measured]
    checks = parity.checks if parity and measured else []
    rows += [[check.name, "the same" if check.ok else "NOT the same", check.evidence] for check in checks]
    note = "" if rows else outcome(run) or "nothing was checked"
    return Table(("switch", "state", "evidence"), rows, "Every check", note)


def proof(runs: Sequence[Run], parity: Parity | None = None) -> list[Content]:
    """What proves the last stage: the switches that it changes and those not as set; the others folded."""
    stages = results.stages(runs)
    before, run = stages[-2:] if len(stages) > 1 else (stages[0], stages[0])
    every = evidence_of(run, parity)
    changed = {switch for switch, value in run.recipe.items() if value != before.recipe.get(switch)}
    rows = [row for row in every.rows if row[0] in changed or row[1].startswith("NOT")]
    others = [row for row in every.rows if row not in rows]
    folded = f"{len(others)} {'other ' * bool(rows)}checks, all passed"
    return [
        *([Table(every.columns, rows, "Proof", every.note)] if rows or not others else []),
        *([Section(folded, [Table(every.columns, others)], folded=True)] if others else []),
    ]


def _changes(runs: Sequence[Run]) -> list[str]:
    """For each switch that a stage changes, its evidence now and before."""
    measured = [run for run in results.stages(runs) if run.status == "ok"]
    return [
        f"{name(run)}: {run.evidence(switch)} (was: {before.evidence(switch)})"
        for before, run in itertools.pairwise(measured)
        for switch, value in run.recipe.items()
        if value != before.recipe.get(switch) and run.evidence(switch)
    ]


def notes(runs: Sequence[Run]) -> list[str]:
    """Warnings, then facts, each once, with the stages that it concerns."""
    stages: dict[str, list[str]] = {}
    for run in runs:
        facts = [f"{about}: {fact}" for about, fact in run.facts.items() if about != ORIGIN]
        for text in [*run.warnings, *facts]:
            stages.setdefault(text, []).append(name(run))
    measured = sum(run.status == "ok" for run in runs)
    return [
        f"{'every measured stage' if len(names) == measured > 1 else ', '.join(names)}: {text}"
        for text, names in stages.items()
    ]


def _settings(runs: Sequence[Run]) -> Table:
    names = list(dict.fromkeys(switch for run in runs for switch in run.recipe))
    rows = [[switch, *(str(run.recipe.get(switch, "")) for run in runs)] for switch in names]
    return Table(["switch", *map(name, runs)], rows)


def one_line(run: Run) -> str:
    """A run that has just ended."""
    return f"  {name(run):<18} {outcome(run) or '  '.join(row(run)[1:4])}"
