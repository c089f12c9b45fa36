"""How good the simulation is: predicted against published, for all anchors, the worst cases by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from perfkit.results.run import Run
from perfkit.show import results, style, tables_simulated, units
from perfkit.show.document import Bullets, Content, Figure, Section, Table
from perfkit.simulate import article
from perfkit.simulate.anchors import Anchor, Anchors, grouped, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOOK = (
    (style.BLUE, "o"), (style.ORANGE, "s"), (style.GREEN, "^"), (style.VERMILLION, "D"), (style.PURPLE, "v"),
    (style.SKY, "P"), (style.GREY, "X"),
)  # fmt: skip
_WORST = 10


def sections(anchors: Anchors, runs: Sequence[Run]) -> list[Content]:
    """Everything about the model's errors.

    Args:
        anchors: published figures with predictions.
        runs: the article's ladder on its virtual host.
    """
    opening = (
        "No kernel ran for any predicted number here. The model's constants were fitted to published "
        "measurements; what counts is the error on models that were not fitted."
    )
    return [opening, *_published(anchors.anchors), *_ladder(runs)]


def _published(anchors: Sequence[Anchor]) -> list[Content]:
    gains = [anchor for anchor in anchors if anchor.claim != "rate"]
    rates = [anchor for anchor in anchors if anchor.claim == "rate"]
    figures = [_figure("rates", "samples/s", rates), _figure("gains", "gain of a switch", gains)]
    rows = [
        [*key, f"{one.count}", units.percent(one.median), units.percent(one.p90),
         f"{one.worst.model} {one.worst.error:+.0%}"]
        for key, group in grouped(anchors, lambda a: (a.gpu, a.precision, a.claim, _kind(a), a.use)).items()
        for one in [summary(group)]
    ]  # fmt: skip
    worst = sorted(anchors, key=lambda anchor: -abs(anchor.error))[:_WORST]
    cases = [
        [a.model, a.gpu, a.precision, a.claim, a.what, units.number(a.predicted), units.number(a.published),
         f"{a.error:+.0%}", a.use]
        for a in worst
    ]  # fmt: skip
    columns = (
        "GPU",
        "precision",
        "claim",
        "what",
        "use",
        "figures",
        "median error",
        "90% are below",
        "worst",
    )
    named = ("model", "GPU", "precision", "claim", "what", "predicted", "published", "error", "use")
    sources = [f"{gpu}: {source}" for gpu, source in dict.fromkeys((a.gpu, a.source) for a in anchors)]
    return [
        Section(
            "Predicted against published", [*figures, Table(columns, rows, "Errors by GPU and claim", _USES)]
        ),
        Section("The worst cases", [Table(named, cases, "The largest errors of all")]),
        Section("Sources", [Bullets(sources)], folded=True),
    ]


_USES = (
    "fitted: the constants have seen it. held out: predicted by constants that were fitted without its "
    "family of models. never fitted: kept apart."
)


def _kind(anchor: Anchor) -> str:
    """Training or inference, and the layout, whatever the batch size."""
    return ", ".join(part for part in anchor.what.split(", ") if not part.startswith("batch"))


def _figure(name: str, unit: str, anchors: Sequence[Anchor]) -> Figure:
    one = summary(anchors)
    alt = (
        f"{one.count} points: half of the predictions are within {units.percent(one.median)} of the "
        f"published {unit}, nine in ten within {units.percent(one.p90)}; the worst is {one.worst.model} on "
        f"{one.worst.gpu}, {one.worst.error:+.0%}"
    )
    title = f"Simulated against published {unit}"
    return Figure(name, title, alt, lambda ax, ink: _scatter(anchors, unit, ax, ink), 5.2)


def _scatter(anchors: Sequence[Anchor], unit: str, ax: Axes, ink: str) -> None:
    """Both axes logarithmic; filled: not fitted to. The band holds nine in ten of these."""
    from matplotlib.ticker import LogLocator, NullFormatter

    style.plain_axes(ax, ink)
    honest = [anchor for anchor in anchors if anchor.use != "fitted"] or list(anchors)
    values = [value for a in anchors for value in (a.published, a.predicted)]
    ends = np.array([0.8 * min(values), 1.25 * max(values)])
    band = summary(honest).p90
    ax.fill_between(ends, ends / (1 + band), ends * (1 + band), color=style.GREY, alpha=0.25, linewidth=0)
    ax.plot(ends, ends, color=ink, linewidth=1)
    rates = all(anchor.claim == "rate" for anchor in anchors)
    groups = grouped(anchors, lambda a: (a.gpu,) if rates else (a.gpu, a.claim))
    for (colour, sign), (names, group) in zip(_LOOK * len(groups), groups.items(), strict=False):
        for fitted in (False, True):
            some = [a for a in group if (a.use == "fitted") == fitted]
            if some:
                label = f"{', '.join(names)}{' (fitted)' if fitted else ''}"
                ax.plot(
                    [a.published for a in some], [a.predicted for a in some], sign, label=label, markersize=5,
                    color=colour, markerfacecolor="none" if fitted else colour,
                    markeredgecolor=colour if fitted else ink, markeredgewidth=0.5, linestyle="none",
                )  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(*ends)
    ax.set_ylim(*ends)
    base = 10.0 if ends[1] / ends[0] > 100 else 2.0
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(base))
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.set_minor_formatter(NullFormatter())
    style.axis_labels(ax, ink, f"published {unit}", f"simulated {unit} (grey: ±{band:.0%})")
    style.legend_below(ax, ink, 3)


# ---------------------------------------------------------------- the article's ladder


def _ladder(runs: Sequence[Run]) -> list[Content]:
    """The article's stages, each with its own error, and what two errors make of each other."""
    contents = tables_simulated.beside_published(runs)
    if not contents:
        return []
    errors = [
        (run.title, rate.value / one.samples_per_s - 1)
        for run in runs
        if (one := article.published(run.stage)) and (rate := results.rate(run))
    ]
    text = lesson(errors)
    title = "The article's ladder, to which nothing was fitted"
    return [Section(title, [*contents, *([text] if text else [])])]


def lesson(errors: Sequence[tuple[str, float]]) -> str:
    """The stage that agrees best although its gain does not, in words; empty if there is none.

    Args:
        errors: title, and predicted / published - 1 of samples/s, of each stage in order.
    """
    best, text = 0.0, ""
    for (_, before), (title, error) in pairwise(errors):
        gain = (1 + error) / (1 + before) - 1
        if abs(gain) - abs(error) > max(best, 0.03):
            best = abs(gain) - abs(error)
            text = (
                f"Errors cancel: with “{title}” samples/s are only {error:+.0%} off, but the gain of this "
                f"stage is {gain:+.0%} off, because the stage before it is {before:+.0%} off. A total that "
                "agrees proves little about its parts: look at each gain."
            )
    return text
