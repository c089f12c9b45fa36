"""The article's ladder on a simulated GPU: predicted beside published, with what does not fit together."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from perfkit.results.run import Run
from perfkit.results.stats import Estimate
from perfkit.show import simulated, units
from perfkit.show.document import Bullets, Cell, Col, Content, Section, tabulate
from perfkit.show.sentences import name
from perfkit.simulate import article
from perfkit.simulate.article import Published


class _Pair(NamedTuple):
    """A stage as it was predicted and as it was published, and the stage before."""

    run: Run
    published: Published
    rate: Estimate
    before: "_Pair | None"

    @property
    def error(self) -> float:
        return self.rate.value / self.published.samples_per_s - 1

    @property
    def gain(self) -> float | None:
        return self.rate.value / self.before.rate.value if self.before else None

    @property
    def published_gain(self) -> float | None:
        return self.published.samples_per_s / self.before.published.samples_per_s if self.before else None


_COLUMNS = (
    Col("stage", lambda pair: name(pair.run)),
    Col("predicted samples/s", lambda pair: simulated.estimate(pair.run, pair.rate)),
    Col("published", lambda pair: Cell(pair.published.samples_per_s, lambda rate: f"{rate:,.0f}")),
    Col("error", lambda pair: Cell(pair.error, lambda error: f"{error:+.0%}")),
    Col("gain predicted", "gain", units.times),
    Col("gain published", "published_gain", units.times),
    Col("kernels' share", lambda pair: pair.run.utilization, units.percent, narrow=False),
    Col("published share", lambda pair: pair.published.utilization, units.percent, narrow=False),
    Col("memory", lambda pair: pair.run.peak_memory_bytes, units.size, narrow=False),
    Col("published memory", lambda pair: pair.published.memory_gb, lambda size: f"{size:g} GB", narrow=False),
)


def sections(runs: Sequence[Run]) -> list[Content]:
    """Predicted beside published; nothing unless GPU, host, workload and batch sizes are the article's."""
    pairs: list[_Pair] = []
    for run in runs:
        published, rate = article.published(run.stage), run.samples_per_s
        known = run.simulated
        if not (
            known and rate and published and known.host == "article" and run.workload == article.WORKLOAD
        ):
            continue
        if run.device == f"sim:{article.GPU}" and run.recipe["batch_size"] == published.batch_size:
            pairs.append(_Pair(run, published, rate, pairs[-1] if pairs else None))
    if not pairs:
        return []
    errors = [pair.error for pair in pairs]
    note = (
        f"Mean error of samples/s {units.percent(statistics.fmean(map(abs, errors)))}, worst "
        f"{max(errors, key=abs):+.0%}, over {len(errors)} stages. A small error of a later stage may be two "
        "that cancel: look at the gains too."
    )
    table = tabulate(_COLUMNS, pairs, "Simulated, beside the article's figures", note)
    return [Section("Predicted beside published", [table, Bullets(article.INCONSISTENCIES)])]
