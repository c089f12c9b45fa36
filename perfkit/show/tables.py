"""A session of runs as sections: the ladder, what each stage showed, pictures, evidence, details."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from perfkit import additions, machine
from perfkit.results.parity import Parity
from perfkit.results.recordings import ORIGIN
from perfkit.results.run import Run
from perfkit.show import figures, results, simulated, units
from perfkit.show.document import Bullets, Cell, Code, Col, Content, Notice, Section, Table, tabulate
from perfkit.show.sentences import SIGNS, name, notices, outcome, verdicts

_AGAIN = "="
_EVIDENCE = (
    Col("stage", lambda check: check[0]),
    Col("switch", lambda check: check[1]),
    Col("state", lambda check: check[2]),
    Col("evidence", lambda check: check[3]),
)
_HOLDS, _FAILS = Cell("as set", tone="good"), Cell("NOT as set", tone="bad")
_SAME, _DIFFERS = Cell("the same", tone="good"), Cell("NOT the same", tone="bad")


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
        *(content for place in additions.sections() for content in additions.load(place)(runs)),
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
    first, last = runs[0], next((run for run in reversed(results.stages(runs)) if run.samples_per_s), None)
    options = ", ".join(f"{name}={value}" for name, value in first.options.items())
    settings = [f"workload {first.workload}", options, f"preset {first.preset}", f"device {first.device}"]
    settings += [f"seed {first.seed}", f"session {first.session}", first.created]
    lines = [machine.describe(first.machine), " · ".join(filter(None, settings))]
    overall = last.speedup("baseline") if last else None
    if last and overall:
        gain = f"{units.ratio(overall)}, {overall.verdict}{' (simulated)' * bool(last.simulated)}"
        lines.append(f"{name(last)}, the last stage measured, against the baseline: {gain}.")
    return lines


LADDER = (
    Col("stage", name),
    Col("samples/s", lambda run: rate(run)),
    Col("× previous", lambda run: against(run, "previous")),
    Col("× baseline", lambda run: against(run, "baseline")),
    Col("waits for data", lambda run: _wait(run)),
    Col("step time", lambda run: _step(run), narrow=False),
    Col("pipeline efficiency", "pipeline_efficiency", units.percent, narrow=False),
    Col("peak memory", lambda run: _memory(run)),
    Col("bytes/sample", lambda run: _bytes_per_sample(run), narrow=False),
    Col("note", lambda run: note(run), narrow=False),
)


def ladder(runs: Sequence[Run]) -> Table:
    """One row for each run."""
    title = "The ladder, simulated" if simulated.any_of(runs) else "The ladder"
    return tabulate(LADDER, runs, title, _legend(runs), none="nothing was measured")


def short_ladder(runs: Sequence[Run]) -> Table:
    """The columns that fit beside a notebook's margin, and on paper.

    Where every stage has the same one before it, a single column compares with that stage, and names it.
    """
    columns = [column for column in LADDER if column.head not in ("pipeline efficiency", "bytes/sample")]
    if all(
        _compared_with(run, "previous") == _compared_with(run, "baseline") for run in results.stages(runs)
    ):
        columns.remove(LADDER[2])
        head = f"× {name(runs[0])}" if runs else "× baseline"
        columns = [replace(column, head=head) if column is LADDER[3] else column for column in columns]
    return tabulate(columns, runs, ladder(runs).title, _legend(runs), none="nothing was measured")


def rate(run: Run) -> Cell:
    """samples/s with its interval; without it, how the run ended."""
    estimate, mark = run.samples_per_s, SIGNS["disturbed"] if run.disturbed is not None else ""
    absent = outcome(run).partition(":")[0]
    return Cell(estimate, lambda value: simulated.estimate(run, value), absent, mark if estimate else "")


def against(run: Run, role: str) -> Cell:
    """`1.34× (1.28–1.41) ▲`; a dash for a stage with nothing before it."""
    if ratio := run.speedup(role):
        again = run.is_again and ratio.verdict != "disturbed"
        return Cell(ratio, units.ratio, mark=_AGAIN if again else SIGNS[ratio.verdict])
    alone = not run.pairings or run.is_again
    return Cell(None, absent="–" if run.samples_per_s and alone else units.NOT_AVAILABLE)


def _legend(runs: Sequence[Run]) -> str:
    """What the signs in the ladder mean."""
    ratios = {run.id: [run.speedup(role) for role in ("previous", "baseline")] for run in runs}
    used = {ratio.verdict for both in ratios.values() for ratio in both if ratio}
    used |= {"disturbed" for run in runs if run.disturbed is not None}
    again = [f"{_AGAIN} the same recipe in a second process"] if any(run.is_again for run in runs) else []
    signs = [f"{sign} {verdict}" for verdict, sign in SIGNS.items() if verdict in used]
    return " · ".join([*signs, *again, *([simulated.LEGEND] if simulated.any_of(runs) else [])])


def _compared_with(run: Run, role: str) -> str:
    pairing = run.pairing(role)
    return pairing.against if pairing else ""


def _wait(run: Run) -> Cell:
    return Cell(run.data_wait_share, lambda share: simulated.cell(run, units.percent(share)))


def _step(run: Run) -> Cell:
    return Cell(run.step_s, lambda _: simulated.step_time(run))


def _memory(run: Run) -> Cell:
    count = run.peak_memory_bytes if run.status == "ok" else None
    return Cell(count, lambda count: simulated.memory(run, units.size(count)))


def _bytes_per_sample(run: Run) -> Cell:
    """Bytes of a sample in the loader's batch; and those copied to the device, where they differ."""
    count, copied = run.batch_bytes_per_sample, run.h2d_bytes_per_sample
    apart = "" if copied in (None, count) else f", {copied:,} B copied"
    return Cell(count if run.status == "ok" else None, lambda count: f"{count:,} B{apart}")


def note(run: Run) -> str:
    """Why a row has no numbers, or what disturbed it and how many warnings it has."""
    count = len(run.warnings)
    notes = ["disturbed"] if run.disturbed is not None else []
    notes += [f"{count} warning{'s' if count > 1 else ''}"] if count else []
    return outcome(run) or "; ".join(notes)


def evidence(runs: Sequence[Run]) -> list[Content]:
    """The state of the switches in the built objects: first those that are not as set, then the changes."""
    checks = [
        (name(run), check.switch, _HOLDS if check.ok else _FAILS, check.evidence)
        for run in runs for check in run.mechanism
    ]  # fmt: skip
    wrong = [check for check in checks if check[2] is _FAILS]
    if not checks:
        return []
    count = f"{len(checks) - len(wrong)} of {len(checks)} checks found the switch as the recipe sets it."
    alarm = [tabulate(_EVIDENCE, wrong, "Switches that are not as set")] if wrong else []
    every = Section("Every check", [tabulate(_EVIDENCE, checks)], folded=True)
    return [count, *alarm, Bullets(_changes(runs)), every]


def evidence_of(run: Run, parity: Parity | None = None) -> Table:
    """Every check of one run; with `parity`, whether it still trains the same too."""
    measured = run.status == "ok"
    checks = [("", m.switch, _HOLDS if m.ok else _FAILS, m.evidence) for m in run.mechanism * measured]
    if parity and measured:
        checks += [("", c.name, _SAME if c.ok else _DIFFERS, c.evidence) for c in parity.checks]
    return tabulate(_EVIDENCE[1:], checks, "Every check", none=outcome(run) or "nothing was checked")


def proof(runs: Sequence[Run], parity: Parity | None = None) -> list[Content]:
    """What proves the last stage: the switches that it changes and those not as set; the others folded."""
    stages = results.stages(runs)
    before, run = stages[-2:] if len(stages) > 1 else (stages[0], stages[0])
    every = evidence_of(run, parity)
    changed = {switch for switch, value in run.recipe.items() if value != before.recipe.get(switch)}
    rows = [row for row in every.rows if row[0] in changed or row[1] in (_FAILS, _DIFFERS)]
    others = [row for row in every.rows if row not in rows]
    folded = f"{len(others)} {'other ' * bool(rows)}checks, all passed"
    return [
        *([replace(every, rows=rows, title="Proof")] if rows or not others else []),
        *([Section(folded, [replace(every, rows=others, title="")], folded=True)] if others else []),
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


def _settings(runs: Iterable[Run]) -> Table:
    names = list(dict.fromkeys(switch for run in runs for switch in run.recipe))
    rows = [[switch, *(str(run.recipe.get(switch, "")) for run in runs)] for switch in names]
    return Table(["switch", *map(name, runs)], rows)


def one_line(run: Run) -> str:
    """A run that has just ended."""
    cells = [str(rate(run)), *(str(against(run, role)) for role in ("previous", "baseline"))]
    return f"  {name(run):<18} {outcome(run) or '  '.join(cells)}"
