"""How well somebody predicts: predicted against measured, how sure against how often it held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.results.guesses import WITHIN, Answer, Guess, Share, holds, shares
from perfkit.results.stats import Ratio
from perfkit.show import style, units
from perfkit.show.document import Bullets, Content, Figure, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = {50: "o", 70: "s", 90: "^", None: "D"}
_COLOURS = {50: style.SKY, 70: style.ORANGE, 90: style.PURPLE, None: style.GREY}
_HOLDS = {True: "yes", False: "no", None: "open"}
_TICKS = (0.1, 0.2, 0.5, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100)
_RULE = f"A prediction holds if the result is within a fifth of it (a factor of {WITHIN:g}, either way)."


def judgement(times: float, result: Ratio) -> str:
    """A prediction beside its result, by the rule of all predictions."""
    factor = max(times / result.ratio, result.ratio / times)
    words = {
        True: "within a fifth",
        False: f"off by a factor of {factor:.2f}",
        None: "open, the rounds cannot tell",
    }
    return words[holds(times, result)]


def sections(guesses: Sequence[Guess], answers: Sequence[Answer] = ()) -> list[Content]:
    """Every prediction beside its result, what follows from them, and one figure of the speed-ups."""
    if not (guesses or answers):
        return [
            "No predictions yet. A panel keeps yours if you press Predict before you see its results; "
            "say how sure you are, too."
        ]
    rows = [
        [
            _title(one), f"{one.times:.2f}×", _sure(one), units.ratio(one.result), _HOLDS[one.holds],
            f"{one.device}, {one.preset}",
        ]
        for one in guesses
    ]  # fmt: skip
    note = f"{_RULE} Open: the interval is too wide to say, or there is no verdict."
    columns = ("chapter", "predicted", "how sure", "result (95% interval)", "holds", "where")
    others = [
        [one.question, value(one.value), _sure(one), value(one.result), _HOLDS[one.holds]] for one in answers
    ]
    columns_others = ("question", "predicted", "how sure", "result", "holds")
    sure = [_row(one) for one in shares([*guesses, *answers])]
    none = "" if sure else "no prediction with a confidence can be judged yet"
    columns_sure = ("how sure", "hold", "share that holds (95% interval)", "shows")
    return [
        Bullets(_words(guesses, answers)),
        *([Table(columns, rows, "Your predictions", note)] if guesses else []),
        *([Table(columns_others, others, "Your other predictions", _RULE)] if answers else []),
        Table(columns_sure, sure, "How sure, and how often right", none),
        *([_figure(guesses)] if guesses else []),
    ]


def _title(guess: Guess) -> str:
    known = OPTIMIZATIONS.get(guess.stage)
    return known.title if known else guess.stage


def value(guessed: float | str) -> str:
    """A number or a name that was predicted, or that came out."""
    return guessed if isinstance(guessed, str) else f"{guessed:.3g}"


def _sure(guess: Guess | Answer) -> str:
    return f"{guess.confidence}%" if guess.confidence else "–"


def _row(share: Share) -> list[str]:
    interval = f"{share.holds / share.count:.0%} ({share.low:.0%}–{share.high:.0%})"
    return [f"{share.confidence}%", f"{share.holds} of {share.count}", interval, share.verdict]


def _words(guesses: Sequence[Guess], answers: Sequence[Answer]) -> list[str]:
    judged = [one for one in guesses if one.holds is not None]
    count = len(judged) + len(answers)
    held = sum(bool(one.holds) for one in judged) + sum(one.holds for one in answers)
    words = [f"{held} of {count} predictions that can be judged hold."]
    if judged:
        above = sum(one.times > one.result.ratio for one in judged)
        words.append(
            f"{above} of the speed-ups were predicted too high, {len(judged) - above} too low or right."
        )
    if count < 10:
        words.append("So few predictions show little: the intervals say how little.")
    return words


def _figure(guesses: Sequence[Guess]) -> Figure:
    values = [
        f"{_title(one)}: predicted {one.times:.2f}×, result {units.ratio(one.result)}" for one in guesses
    ]
    alt = f"Predicted against result. {'; '.join(values)}."
    title = "What you predicted, and what came out"
    return Figure("calibration", title, alt, lambda ax, ink: _draw(guesses, ax, ink), 5.2)


def _draw(guesses: Sequence[Guess], ax: Axes, ink: str) -> None:
    """A mark for each prediction on logarithmic axes; in the band, the prediction holds."""
    style.plain_axes(ax, ink)
    ends = [end for one in guesses for end in (one.times, one.result.low, one.result.high)]
    low, high = min([0.8, *ends]) / 1.1, max([2.0, *ends]) * 1.1
    line = np.array([low, high])
    band = ax.fill_between(line, line / WITHIN, line * WITHIN, color=style.GREEN, alpha=0.18, linewidth=0)
    band.set_label("holds: within a fifth")
    ax.plot(line, line, color=ink, linewidth=0.8, alpha=0.6)
    for sure, mark in _MARKS.items():
        some = [one for one in guesses if one.confidence == sure]
        if some:
            middle = [one.result.ratio for one in some]
            below = [one.result.ratio - one.result.low for one in some]
            above = [one.result.high - one.result.ratio for one in some]
            ax.errorbar(
                [one.times for one in some], middle, yerr=[below, above], fmt=mark, markersize=8,
                color=_COLOURS[sure], markeredgecolor=ink, ecolor=ink, elinewidth=1.2, capsize=3,
                label=f"{sure}% sure" if sure else "no confidence given",
            )  # fmt: skip
    for one in guesses:
        left = one.times**2 > low * high  # there, the name has more room on its left
        ax.annotate(
            style.mark(_title(one)), (one.times, one.result.ratio), xytext=(-8 if left else 8, 5),
            textcoords="offset points", ha="right" if left else "left", color=ink,
            fontsize=0.9 * style.type_size(ax),
        )  # fmt: skip
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    for name in ("x", "y"):
        getattr(ax, f"set_{name}ticks")(ticks, [f"{tick:g}×" for tick in ticks])
        getattr(ax, f"set_{name}ticks")([], minor=True)
    style.axis_labels(ax, ink, "predicted", "result, with its 95% interval")
    style.legend_below(ax, ink, 5)
