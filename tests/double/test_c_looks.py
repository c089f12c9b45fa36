"""What looks inside a step on the double: profiles, syncs, memory."""

import pytest

from perfkit.additions.inside import looks
from perfkit.additions.trace.profile import profile
from perfkit.studies.sources import Progress
from tests.support.looks import syncs

WHERE = {"preset": "smoke", "device": "cuda"}
pytestmark = pytest.mark.usefixtures("no_orphans")


def test_a_profile_can_be_taken(tmp_path):
    made = profile("tests.support.toy:Toy", "baseline", out=tmp_path / "trace.json.gz", **WHERE)
    assert made.analysis.steps


def test_waits_and_copies_have_the_lines_that_make_them():
    found = syncs("tests.support.chatty:Chatty", device="cuda", options={"clean": False}).places
    assert sum(place.kind == "wait" for place in found) >= 3
    assert not [place for place in found if "syncs.py" in place.where]


def test_memory_and_kernels_are_accounted_for():
    found = looks.memory("tests.support.toy:Toy", None, Progress(), **WHERE)
    assert sum(found.parts.values()) == found.peak
    assert found.parts["weights"] and found.parts["activations"]
    assert found.peak <= found.allocated <= found.reserved
