"""The timeline as a page of its own: names from outside stay names."""

from __future__ import annotations

import json

from perfkit.show import html
from perfkit.trace import Bar, Lane, Lanes
from perfkit.trace.figures import interactive


def test_names_from_outside_cannot_leave_the_timeline() -> None:
    evil = "</script><script>alert(1)</script>"
    bar = Bar(name=evil, start_us=0, duration_us=1, colour="cpu_op", depth=0)
    lane = Lane(label=evil, kind="thread", bars=[bar])
    lanes = Lanes(name=evil, start_us=0, duration_us=2, lanes=[lane], phases=[], omitted=0)
    page = html.page("x", [interactive(lanes)])
    assert "alert(1)</script>" not in page
    assert page.count("<script") == 2
    assert evil not in html.fragment([interactive(lanes)])
    text = page.split('id="pk-timeline-data">')[1].split("</script>")[0]
    assert json.loads(text)["lanes"][0]["label"].startswith("</script>")
