"""The article's ladder on a simulated GPU: predicted beside published, with what does not fit together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from perfkit.results.run import Run
from perfkit.show import results, simulated, units
from perfkit.show.document import Bullets, Content, Section, Table
from perfkit.show.sentences import name, outcome
from perfkit.simulate import article
from perfkit.simulate.article import Published

_COLUMNS = (
    "stage", "batch", "predicted samples/s", "published", "error", "gain predicted", "gain published",
    "kernels' share", "published share", "memory", "published memory",
)  # fmt: skip
_NARROW = ("stage", "predicted samples/s", "published", "error", "gain predicted", "gain published")


def beside_published(runs: Sequence[Run]) -> list[Content]:
    """Predicted beside published; nothing unless these are the article's GPU, host and workload."""
    pairs = [(run, one) for run in runs if _is_the_articles(run) and (one := article.published(run.stage))]
    if not any(run.status == "ok" for run, _ in pairs):
        return []
    rows, errors = [], list[float]()
    before: tuple[Run, Published] | None = None
    for run, one in pairs:
        rows.append(_row(run, one, before))
        rate = results.rate(run)
        if rate:
            errors.append(rate.value / one.samples_per_s - 1)
            before = run, one
    worst = max(errors, key=abs)
    mean = statistics.fmean(map(abs, errors))
    note = (
        f"Mean error of samples/s {units.percent(mean)}, worst {worst:+.0%}, over {len(errors)} stages. A "
        "small error of a later stage may be two that cancel: look at the gains too. † from a step's time."
    )
    table = Table(_COLUMNS, rows, "Simulated, beside the article's figures", note, _NARROW)
    return [Section("Predicted beside published", [table, Bullets(article.INCONSISTENCIES)])]


def _is_the_articles(run: Run) -> bool:
    known = run.simulated
    same = run.device == f"sim:{article.GPU}" and run.workload == article.WORKLOAD
    return same and (known is None or known.host == "article")


def _row(run: Run, one: Published, before: tuple[Run, Published] | None) -> list[str]:
    rate, batch = results.rate(run), run.recipe.get("batch_size")
    mark = "" if batch == one.batch_size else f" (published: {one.batch_size})"
    shown = f"{one.samples_per_s:,.0f}{'†' * one.derived}"
    if not rate:
        return [name(run), f"{batch}{mark}", outcome(run).partition(":")[0], shown, *["–"] * 7]
    previous = results.rate(before[0]) if before else None
    gain = units.times(rate.value / previous.value) if previous else "–"
    expected = units.times(one.samples_per_s / before[1].samples_per_s) if before else "–"
    memory = run.peak_memory_bytes
    return [
        name(run), f"{batch}{mark}", simulated.estimate(run, rate), shown,
        f"{rate.value / one.samples_per_s - 1:+.0%}", gain, expected,
        units.percent(run.utilization), units.percent(one.utilization) if one.utilization else "–",
        units.size(memory), f"{one.memory_gb:g} GB" if one.memory_gb else "–",
    ]  # fmt: skip
