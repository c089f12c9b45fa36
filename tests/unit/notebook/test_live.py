"""Live values: a line for each trial, an outlier that does not rule it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from perfkit.notebook.live import Live, sparkline
from perfkit.studies.plan import Pace, Progress


def progress(
    title: str = "baseline", step_s: float = 0.1, phase: str = "measuring", **more: float
) -> Progress:
    return Progress("round 1 of 2 together", phase, 0.5, pace=Pace(title, step_s, 32, **more))


def test_steps_and_throughput_of_each_trial_and_what_else_the_machine_does() -> None:
    live = Live()
    live.follow(progress(phase="warm-up"))
    assert "<b>▸ warm-up</b>" in live.html()
    assert "Last block" not in live.html()
    live.follow(progress("<AMP>", 0.05, others=0.3, gpu=0.9))
    shown = live.html()
    assert "<b>▸ rounds</b>" in shown
    assert re.findall(r"</svg></td><td>(.*?)</td><td>(.*?)</td>", shown) == [
        ("100 ms", "320"),
        ("50.0 ms", "640"),
    ]
    assert "▸ &lt;AMP&gt;" in shown
    assert "GPU busy 90% of the time; other programs took 30% of the cores: ! disturbed" in shown
    live.follow(progress(others=0.01))
    assert "took 1% of the cores: undisturbed" in live.html()
    live.clear()
    assert live.html() == ""


@given(st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=120), st.floats(1e-5, 1e4))
def test_nothing_leaves_the_picture(values: list[float], top: float) -> None:
    picture = ElementTree.fromstring(sparkline(values, top))
    points = [tuple(map(float, point.split(","))) for point in picture[0].attrib["points"].split()]
    assert all(0 <= x <= 240 and 0 <= y <= 28 for x, y in points)
    assert len(picture) - 1 == sum(value > top for value in values)
