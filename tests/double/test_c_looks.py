"""What looks inside a step on the double: profiles, syncs, memory, kernels, scripts."""

import pytest

from perfkit.additions.inside import looks
from perfkit.additions.trace.profile import profile
from tests.support.cli import perfkit

WHERE = {"preset": "smoke", "device": "cuda"}
SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda")
loader = DataLoader(TensorDataset(torch.randn(512, 32), torch.randint(0, 4, (512,))), batch_size=16)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(40):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
pytestmark = pytest.mark.usefixtures("no_orphans")


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


def test_a_profile_can_be_taken(tmp_path):
    made = profile("tests.support.toy:Toy", "baseline", out=tmp_path / "trace.json.gz", **WHERE)
    assert made.analysis.steps


def test_waits_and_copies_have_the_lines_that_make_them():
    found = looks.syncs(
        "perfkit.additions.inside.chatty:Chatty", device="cuda", options={"clean": False}
    ).places
    assert sum(place.kind == "wait" for place in found) >= 3
    assert not [place for place in found if "syncs.py" in place.where]


def test_memory_and_kernels_are_accounted_for():
    found = looks.memory("tests.support.toy:Toy", **WHERE)
    assert sum(found.parts.values()) == found.peak
    assert found.parts["weights"] and found.parts["activations"]
    assert found.peak <= found.allocated <= found.reserved


def test_a_script_on_the_device_is_watched_and_compared(script):
    told = perfkit("watch", str(script), "--budget", "5")
    assert "on cuda" in told.output
    other = script.with_name("other.py")
    other.write_text(SCRIPT.replace("batch_size=16", "batch_size=16, pin_memory=True"))
    perfkit("compare", str(script), str(other), "--budget", "2", code=None)
