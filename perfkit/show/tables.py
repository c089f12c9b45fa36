"""Tables and sections of runs, checks and histories, and the report of a session."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from perfkit import machine
from perfkit.results import Check, Parity, Ratio, Run, stats
from perfkit.show import figures, sentences, units
from perfkit.show.document import Bullets, Cell, Code, Col, Content, Notice, Section, Table, tabulate
from perfkit.show.sentences import SIGNS, about, run_name


def report(runs: Sequence[Run], scripts: Mapping[str, str] | None = None) -> list[Content]:
    """The report of a session, with its runs in the order of the ladder; `scripts` are by the id of a run."""
    sources = scripts or {}
    codes = [Section(run_name(run), [Code(sources[run.id])]) for run in runs if run.id in sources]
    return [
        *overview(runs),
        *map(Notice, sentences.notices(runs)),
        ladder(runs),
        Section("What each stage showed", [Bullets(sentences.verdicts(runs))]),
        Section("Figures", [figures.step_time(runs), figures.throughput(runs)]),
        *evidence(runs),
        Section("Scripts", codes, folded=True),
    ]


def evidence(runs: Sequence[Run]) -> list[Content]:
    """The proof that switches act, warnings and facts, and the training loss."""
    bullets = notes(runs)
    facts = [Section("Warnings and facts", [bullets])] if bullets.items else []
    return [proof(runs), *facts, Section("Training loss", [loss_table(runs)], folded=True)]


def overview(runs: Sequence[Run]) -> list[str]:
    """Machine, settings and the overall result, one line each."""
    first = runs[0]
    fields = ("workload", "preset", "device", "seed", "session", "created")
    settings = {name: getattr(first, name) for name in fields}
    settings |= {f"option {name}" if name in fields else name: value for name, value in first.options.items()}
    facts = " · ".join(f"{name} {value}" for name, value in settings.items() if value != "")
    return [*filter(None, (machine.describe(first.machine), facts, sentences.headline(runs)))]


def ladder(runs: Sequence[Run]) -> Table:
    """One row for each run; if all were compared with the first, a single column has these ratios."""
    by_first = all(pairing.against == runs[0].id for run in runs for pairing in run.pairings)
    first = run_name(runs[0]) if runs else ""
    roles = {f"× {first}": "baseline"} if by_first else {"× previous": "previous", "× baseline": "baseline"}
    columns = [
        Col("stage", run_name),
        Col("samples/s", rate),
        *(_compared(head, role) for head, role in roles.items()),
        _value_col("waits for data", "data_wait_share", units.percent),
        _value_col("peak memory", "peak_memory_bytes", units.size),
        _value_col("step time", "step_s", units.duration_interval),
    ]
    ratios = [run.speedup(role) for run in sentences.stages(runs) for role in roles.values()]
    verdicts = {ratio.verdict for ratio in ratios if ratio}
    signs = [f"{sign} {verdict}" for verdict, sign in SIGNS.items() if verdict in verdicts]
    if any(run.simulated for run in runs):
        signs.append("~ simulated")
    if not by_first and any(run.decision and not run.simulated for run in runs):
        signs.append("× previous: compared with what you had kept; ratios come from common rounds")
    return tabulate(columns, runs, "The ladder", " · ".join(signs), "nothing was measured")


def _compared(head: str, role: str) -> Col:
    return Col(head, lambda run: against(run.speedup(role), marked=not run.is_again))


def _value_col(head: str, attribute: str, text: Callable[[Any], str]) -> Col:
    """A column for a value that only finished runs have."""

    def cell(run: Run) -> Cell:
        value = getattr(run, attribute) if run.status == "ok" else None
        return Cell(value, lambda value: about(run, text(value)))

    return Col(head, cell)


def rate(run: Run) -> Cell:
    """samples/s with its interval, or how the run ended if it has none."""
    absent = run.status if run.status in ("failed", "cancelled") else units.NOT_AVAILABLE
    disturbed = f" {sentences.DISTURBED}" if run.disturbed is not None else ""
    return Cell(run.samples_per_s, lambda _: f"{sentences.rate(run)}{disturbed}", absent)


def against(ratio: Ratio | None, marked: bool = True) -> Cell:
    """`1.34× (1.28–1.41) ▲`, unmarked for the A/A row, which shows the noise; a dash if it has none."""
    if not marked:
        return Cell(ratio, units.ratio, "–")
    return Cell(ratio, lambda ratio: f"{units.ratio(ratio)} {SIGNS[ratio.verdict]}", "–")


def loss_table(runs: Sequence[Run]) -> Table:
    """The first and the last stored loss of each stage."""
    columns = (
        Col("stage", run_name),
        Col("first", lambda run: run.losses[0], units.number),
        Col("last", lambda run: run.losses[-1], units.number),
        Col("samples trained on", lambda run: len(run.losses) * run.samples_per_step),
    )
    trained = [run for run in runs if run.losses and run.status == "ok"]
    return tabulate(columns, trained, "Training loss", none="no losses were kept")


def notes(runs: Sequence[Run]) -> Bullets:
    """Warnings, then facts, each once, with the stages that they concern."""
    stages: dict[str, list[str]] = {}
    for run in runs:
        for text in [*run.warnings, *_facts(run)]:
            stages.setdefault(text, []).append(run_name(run))
    measured = sum(run.status == "ok" for run in runs)
    lines = []
    for text, names in stages.items():
        concerns_all = measured > 1 and len(names) == measured
        lines.append(f"{'every measured stage' if concerns_all else ', '.join(names)}: {text}")
    return Bullets(lines)


def _facts(run: Run) -> list[str]:
    lines = [sentences.disturbance(run)] if run.busiest else []  # older runs have it in their warnings
    if run.decision and run.decision.why:
        lines.append(f"{'kept' if run.decision.kept else 'not kept'}: {run.decision.why}")
    if run.script:
        lines.append(f"command: {run.script}")
    rounds = len(run.raw.block_samples_per_s)
    if 0 < rounds < stats.MIN_ROUNDS and not run.simulated:
        lines.append(f"too few rounds for a verdict ({rounds}): use the preset quick or paper")
    lines += [f"not applied: {name}: {why}" for name, why in run.not_applied.items()]
    return [*lines, *map(": ".join, run.facts.items())]


_CHECK = (
    Col("check", "name"),
    Col("holds", lambda check: "✓" if check.ok else "✗"),
    Col("evidence", "evidence"),
)


def checks(title: str, results: Sequence[Check]) -> Table:
    """Checks with their evidence."""
    return tabulate(_CHECK, results, title)


def proof(runs: Sequence[Run]) -> Table:
    """Checks of the switches that each stage changes, failed checks, and the number of others that passed."""
    measured = [run for run in sentences.stages(runs) if run.status == "ok"]
    rows = list[Check]()
    passed = 0
    for run in measured:
        before = run.previous(runs) or measured[0]
        for check in run.mechanism:
            if check.ok and run.recipe.get(check.name) == before.recipe.get(check.name):
                passed += 1
            else:
                rows.append(msgspec.structs.replace(check, name=f"{run_name(run)}: {check.name}"))
    which = "other checks" if rows else "checks"
    note = f"{passed} {which}, all passed" if passed else ""
    return tabulate(
        _CHECK, rows, "Proof that the switches are in effect", note, note or "nothing was checked"
    )


def parity(result: Parity) -> list[Content]:
    """Whether a recipe trains the same, check by check."""
    return [checks("Parity", result.checks), result.describe()]


def stored(history: Sequence[Run]) -> Table:
    """Stored runs, one per row."""
    columns = (
        Col("id", "id"),
        Col("name", run_name),
        Col("samples/s", rate),
        Col("workload", "workload_name"),
        Col("session", "session"),
        Col("preset", "preset"),
    )
    return tabulate(columns, history, none="no run is stored yet; `perfkit run` measures some")
