"""The what-if panel: knobs, prediction, and runs that do not hold what it needs."""

from __future__ import annotations

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue
from tests.unit.show.fake_runs import session


def test_a_knob_changes_the_prediction() -> None:
    panel = pk.WhatIf(session()[:2])
    before = panel._prediction.value
    assert "the bottleneck" in before
    panel.speed.value = 10.0
    assert panel._prediction.value != before
    assert "run this cell" in panel._repr_mimebundle_()["text/plain"]
    faster, slower = panel.predict(), panel.predict(amp="bf16")
    assert faster is not None
    assert slower is None, "a part that was never measured is not predicted"


def test_runs_without_the_parts_are_refused() -> None:
    with pytest.raises(InvalidValue, match="baseline"):
        pk.WhatIf(session()[2:3])


def test_the_parts_may_be_those_of_a_recording_which_is_named() -> None:
    panel = pk.WhatIf(session()[:2])
    panel._source.buttons["cpu-quick"].click()
    assert panel.model.device == "cpu" and len(panel.recipe.options) > 2
    assert "Nothing was measured now" in panel._prediction.value
    panel._source.buttons[""].click()
    assert len(panel.recipe.options) == 2 and "Nothing was measured now" not in panel._prediction.value
