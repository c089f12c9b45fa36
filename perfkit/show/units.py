"""Numbers as text: a unit, sensible digits, an interval with the digits of its middle, and `n/a` for None."""

import math
import textwrap

from perfkit.results.stats import Estimate, Ratio

NOT_AVAILABLE = "n/a"
_TIMES = ((1.0, " s"), (1e3, " ms"), (1e6, " µs"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def clean(text: object, width: int = 0) -> str:
    """One line of text from outside: no control characters, at most `width` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if not width or len(line) <= width else line[: max(1, width - 1)].rstrip() + "…"


def wrapped(text: str, width: int, lines: int) -> str:
    """A text on at most `lines` lines of at most `width` characters; the rest becomes an ellipsis."""
    return "\n".join(textwrap.wrap(clean(text), width, max_lines=lines, placeholder=" …"))


def plural(count: int, one: str, many: str = "") -> str:
    """`1 worker`, `2 workers`; `many` if the plural is not formed with an s."""
    return f"{count} {one}" if count == 1 else f"{count} {many or one + 's'}"


def number(value: float | None, like: float | None = None) -> str:
    """A number with three digits, or its whole integer part; `like` sets the digits instead of the value."""
    if value is None:
        return NOT_AVAILABLE
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = float(f"{abs(value if like is None else like):.3g}")  # 9.999 is written as 10.0
    if not math.isfinite(size) or size >= 100 or size == 0:
        return f"{value:,.0f}"
    return f"{value:,.{min(9, 2 - math.floor(math.log10(size)))}f}"


def interval(estimate: Estimate | None, scale: float = 1.0, unit: str = "") -> str:
    """`80.1 ms (79.5–81.0)`: the value, then its 95% interval with the same digits."""
    if estimate is None:
        return NOT_AVAILABLE
    middle, low, high = (scale * value for value in (estimate.value, estimate.low, estimate.high))
    return f"{number(middle)}{unit} ({number(low, middle)}–{number(high, middle)})"


def _time_unit(seconds: float) -> tuple[float, str]:
    return next((unit for unit in _TIMES if abs(seconds) * unit[0] >= 0.9995), _TIMES[-1])


def duration(seconds: float | None) -> str:
    """`1.23 s`, `80.1 ms`, `12.0 µs`."""
    if seconds is None:
        return NOT_AVAILABLE
    scale, unit = _time_unit(seconds)
    return number(seconds * scale) + unit


def duration_interval(estimate: Estimate | None) -> str:
    """A time with its interval, in the unit that suits its value."""
    return interval(estimate, *_time_unit(estimate.value)) if estimate else NOT_AVAILABLE


def size(count: float | None) -> str:
    """Bytes with three digits: `512 B`, `602 kB`, `11.3 GB` (powers of 1,000)."""
    if count is None:
        return NOT_AVAILABLE
    scale, unit = size_unit(count)
    return f"{number(count / scale)} {unit}"


def size_unit(count: float) -> tuple[float, str]:
    """The unit that suits a number of bytes: its size in bytes, and its name."""
    return next((unit for unit in _SIZES if abs(count) >= 0.9995 * unit[0]), (1.0, "B"))


def percent(share: float | None) -> str:
    """A fraction as a whole percentage; `<1%` and `>99%` for what would round to none or all."""
    if share is None:
        return NOT_AVAILABLE
    if 0 < share <= 0.005:
        return "<1%"
    return ">99%" if 0.995 <= share < 1 else f"{100 * share:.0f}%"


def ratio(value: Ratio) -> str:
    """`1.34× (1.28–1.41)`."""
    like = max(abs(value.ratio), 1.0) if value.ratio >= 0.1 else value.ratio
    return f"{number(value.ratio, like)}× ({number(value.low, like)}–{number(value.high, like)})"


def times(value: float | None) -> str:
    """A bare ratio: `1.34×`."""
    return NOT_AVAILABLE if value is None else f"{value:.2f}×"
