"""Runs, histories and checks as tables and sections; a session's report is all of them on a page."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfkit import additions, machine
from perfkit.recipe import Recipe, spoken, switches
from perfkit.results.parity import Check, Parity
from perfkit.results.run import Comparison, Mechanism, Run
from perfkit.results.store import Entry
from perfkit.show import figures, sentences, units
from perfkit.show.document import Bullets, Cell, Code, Col, Content, Notice, Section, Table, tabulate
from perfkit.show.sentences import SIGNS, name, outcome
from perfkit.show.units import clean

_DEFAULTS = Recipe().to_dict()


def sections(runs: Sequence[Run], scripts: Mapping[str, str] | None = None) -> list[Content]:
    """The report of a session.

    Args:
        runs: in the order of the ladder.
        scripts: stage → its training script.
    """
    codes = [Section(stage, [Code(source)]) for stage, source in (scripts or {}).items()]
    return [
        *summary(runs),
        *map(Notice, sentences.notices(runs)),
        ladder(runs),
        *(content for place in additions.sections() for content in additions.load(place)(runs)),
        Section("What each stage showed", [Bullets(sentences.verdicts(runs))]),
        Section("Figures", [figures.view(name, runs) for name in figures.VIEWS]),
        Section("Evidence that the switches are in effect", [proof(runs)]),
        Section("Warnings and facts", [Bullets(notes(runs) or ["none"])]),
        Section("Scripts", codes, folded=True),
    ]


def summary(runs: Sequence[Run]) -> list[str]:
    """Machine, settings and the overall result, one line each."""
    first = runs[0]
    options = ", ".join(f"{name}={value}" for name, value in first.options.items())
    settings = [f"workload {first.workload}", options, f"preset {first.preset}", f"device {first.device}"]
    settings += [f"seed {first.seed}", f"session {first.session}", first.created]
    lines = [machine.describe(first.machine), " · ".join(filter(None, settings)), sentences.headline(runs)]
    return [line for line in lines if line]


# ---------------------------------------------------------------- the ladder


def ladder(runs: Sequence[Run]) -> Table:
    """One row for each run.

    Where every stage has the same one before it, a single column compares with that stage, and names it.
    """
    pairings = [[run.pairing(role) for role in ("previous", "baseline")] for run in sentences.stages(runs)]
    others = [[pairing.against if pairing else "" for pairing in both] for both in pairings]
    same = all(previous == baseline for previous, baseline in others)
    columns = [
        Col("stage", name),
        Col("samples/s", rate),
        *([] if same else [Col("× previous", lambda run: against(run, "previous"))]),
        Col(f"× {name(runs[0])}" if same and runs else "× baseline", lambda run: against(run, "baseline")),
        Col("waits for data", _waiting),
        Col("peak memory", lambda run: _cell(run, run.peak_memory_bytes, lambda _: sentences.memory(run))),
        Col("step time", lambda run: Cell(run.step_s, lambda _: sentences.step_time(run))),
        Col("bytes/sample", _bytes_per_sample),
        Col("note", _note),
    ]
    title = "The ladder, simulated" if sentences.any_simulated(runs) else "The ladder"
    return tabulate(columns, runs, title, _legend(runs), none="nothing was measured")


def rate(run: Run | Entry) -> Cell:
    """samples/s with its interval; without it, how the run ended."""
    absent = run.status if run.status in ("failed", "cancelled") else units.NOT_AVAILABLE
    disturbed = SIGNS["disturbed"] if run.samples_per_s and run.disturbed is not None else ""
    return Cell(run.samples_per_s, lambda value: sentences.rate(run, value), absent, disturbed)


def against(run: Run, role: str) -> Cell:
    """`1.34× (1.28–1.41) ▲`; a dash for a stage with nothing before it."""
    if ratio := run.speedup(role):
        again = run.is_again and ratio.verdict != "disturbed"
        return Cell(ratio, units.ratio, mark="=" if again else SIGNS[ratio.verdict])
    alone = not run.pairings or run.is_again
    return Cell(None, absent="–" if run.samples_per_s and alone else units.NOT_AVAILABLE)


def _legend(runs: Sequence[Run]) -> str:
    """What the signs in the ladder mean."""
    ratios = [run.speedup(role) for run in runs for role in ("previous", "baseline")]
    used = {ratio.verdict for ratio in ratios if ratio}
    used |= {"disturbed" for run in runs if run.disturbed is not None}
    signs = [f"{sign} {verdict}" for verdict, sign in SIGNS.items() if verdict in used]
    signs += ["= the same recipe in a second process"] * any(run.is_again for run in runs)
    signs += ["~ simulated, ± the model's error"] * sentences.any_simulated(runs)
    return " · ".join(signs)


def _cell(run: Run, value: Any, text: Callable[[Any], str]) -> Cell:
    return Cell(value if run.status == "ok" else None, text)


def _waiting(run: Run) -> Cell:
    return _cell(run, run.data_wait_share, lambda share: sentences.about(run, units.percent(share)))


def _bytes_per_sample(run: Run) -> Cell:
    """Bytes of a sample in the loader's batch; and those copied to the device, where they differ."""
    count, copied = run.batch_bytes_per_sample, run.h2d_bytes_per_sample
    apart = "" if copied in (None, count) else f", {copied:,} B copied"
    return _cell(run, count, lambda count: f"{count:,} B{apart}")


def _note(run: Run) -> str:
    """Why a row has no numbers, or what disturbed it and how many warnings it has."""
    count = len(run.warnings)
    texts = ["disturbed"] * (run.disturbed is not None)
    texts += [f"{count} warning{'s' * (count > 1)}"] * bool(count)
    return outcome(run) or "; ".join(texts)


def one_line(run: Run) -> str:
    """A run that has just ended."""
    cells = [str(rate(run)), *(str(against(run, role)) for role in ("previous", "baseline"))]
    return f"  {name(run):<18} {outcome(run) or '  '.join(cells)}"


def notes(runs: Sequence[Run]) -> list[str]:
    """Warnings, then facts, each once, with the stages that it concerns."""
    stages: dict[str, list[str]] = {}
    for run in runs:
        for text in [*run.warnings, *(f"{about}: {fact}" for about, fact in run.facts.items())]:
            stages.setdefault(text, []).append(name(run))
    measured = sum(run.status == "ok" for run in runs)
    return [
        f"{'every measured stage' if len(names) == measured > 1 else ', '.join(names)}: {text}"
        for text, names in stages.items()
    ]


# ---------------------------------------------------------------- checks


def _subject(check: Check | Mechanism) -> str:
    return check.name if isinstance(check, Check) else check.switch


_CHECK = (
    Col("check", _subject),
    Col("holds", lambda check: Cell("✓", tone="ok") if check.ok else Cell("✗", tone="problem")),
    Col("evidence", "evidence"),
)


def checks(title: str, results: Sequence[Check | Mechanism]) -> Table:
    """Checks with their evidence."""
    return tabulate(_CHECK, results, title)


def proof(runs: Sequence[Run], parity: Parity | None = None) -> Table:
    """What proves the switches that each stage changes, and what fails; how many other checks passed.

    Args:
        runs: of one session.
        parity: whether the last run still trains the same.
    """
    rows, passed, before = list[list[Cell | str]](), 0, None
    measured = [run for run in sentences.stages(runs) if run.status == "ok"]
    for run in measured:
        old = (before or run).recipe
        results: list[Check | Mechanism] = [*run.mechanism]
        results += parity.checks if parity and run is measured[-1] else []
        for check in results:
            subject = _subject(check)
            if check.ok and run.recipe.get(subject) == old.get(subject):
                passed += 1
            else:
                rows.append([name(run), *(column.cell(check) for column in _CHECK)])
        before = run
    note = (
        f"{passed} {'other ' * bool(rows)}checks, all passed"
        if passed
        else "nothing was checked" * (not rows)
    )
    return Table(["stage", *(column.head for column in _CHECK)], rows, "Proof", note)


def parity(result: Parity) -> list[Content]:
    """Whether a recipe trains the same, check by check."""
    return [checks("Parity", result.checks), result.describe()]


def doctor(about: str, checks: Sequence[machine.Check], stages: Sequence[Any]) -> list[Content]:
    """What this machine has and what to fix, and which stages can run here."""
    columns = (
        Col("what", "name"),
        Col("state", lambda check: Cell(check.status, tone=check.status)),
        Col("found", "detail"),
        Col("what to do", "remedy"),
    )
    here = Col("here", lambda stage: f"n/a: {stage.reason}" if stage.reason else "will be measured")
    table = tabulate((Col("stage", "title"), here), stages, "Stages")
    return [tabulate(columns, checks, about), *([table] if stages else [])]


def noise(pairs: Sequence[Comparison], device: str, bound: float | None) -> list[Content]:
    """The ratios of pairs of identical processes, and the noise that follows from them."""
    ratios = [f"{pair.ratio.ratio:.3f} ({pair.ratio.low:.3f}–{pair.ratio.high:.3f})" for pair in pairs]
    return [Bullets(ratios), f"A/A noise of {device}: {bound or 0:.2%}, from {len(pairs)} pairs"]


def communication(runs: Sequence[Run]) -> Table:
    """Where a step of several ranks goes."""
    columns = (
        Col("recipe", lambda pair: pair[0]),
        Col("step", lambda pair: pair[1].step_s, units.duration),
        Col("computing", lambda pair: pair[1].compute_s, units.duration),
        Col("averaging alone", lambda pair: pair[1].alone_s, units.duration),
        Col("of it exposed", lambda pair: pair[1].exposed_s, units.duration),
        Col("bytes per step", lambda pair: pair[1].bytes_per_step, units.size),
        Col("slowest rank / median", lambda pair: pair[1].straggling, units.times),
    )
    several = [(name(run), run.communication) for run in runs if run.communication]
    return tabulate(columns, several, "Communication", none="no run has several ranks")


def forecast(efficiency: Mapping[int, float]) -> Table:
    """Predicted efficiency by number of ranks."""
    columns = (
        Col("ranks", lambda pair: str(pair[0])),
        Col("efficiency", lambda pair: pair[1], units.percent),
    )
    return tabulate(columns, [*efficiency.items()], "Predicted efficiency with more ranks")


# ---------------------------------------------------------------- the history


def changes(recipe: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """`AMP bf16`, `Pin memory off`: the switches that differ; what is not named has torch's default."""
    return [
        f"{switches()[name].label} {clean(spoken(value), 30)}"
        for name, default in _DEFAULTS.items()
        if (value := recipe.get(name, default)) != before.get(name, default)
    ]


def history_row(entry: Entry) -> dict[str, Any]:
    """A run as plain values for a grid: texts, and the numbers to sort by."""
    rate_value, ratio = entry.samples_per_s, entry.against_baseline
    return {
        "id": entry.id,
        "name": name(entry),
        "rate": str(rate(entry)) + " disturbed" * (entry.disturbed is not None),
        "rate_value": rate_value.value if rate_value else None,
        "ratio": f"{units.ratio(ratio)} {SIGNS[ratio.verdict]}" if ratio else "–",
        "ratio_value": ratio.ratio if ratio else None,
        "changes": ", ".join(changes(entry.recipe, {})),
        "date": entry.created[:16].replace("T", " "),
        "date_value": entry.created,
    }


def stored(entries: Sequence[Entry]) -> Table:
    """Stored runs, a row each."""
    columns = (
        Col("id", "id"),
        Col("name", name),
        Col("samples/s", rate),
        Col("workload", lambda entry: entry.workload.rpartition(":")[2]),
        Col("session", "session"),
        Col("preset", "preset"),
        Col("note", "note"),
    )
    return tabulate(columns, entries, none="no runs are stored")
