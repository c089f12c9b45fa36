"""A script on the double, compared with itself: two processes, switches from outside, the first losses."""

import json

import pytest

from tests.support.cli import perfkit

pytestmark = pytest.mark.usefixtures("no_orphans")
SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda")
torch.manual_seed(0)
inputs = torch.randn(256, 16)
loader = DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), batch_size=32, shuffle=True)
model = nn.Linear(16, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    for batch, targets in loader:
        batch, targets = batch.to(device), targets.to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), targets).backward()
        optimizer.step()
"""


def test_the_referee_compares_a_script_with_itself_and_sees_its_switches(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    switches = ["--set", "pin_memory=true", "--set", "non_blocking=true"]
    how = ["--preset", "smoke", "--budget", "1", "--precision", "0.5", "--json", "out.json"]
    done = perfkit("referee", "train.py", *switches, *how, code=None, cwd=tmp_path)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["outcome"] in ("faster", "slower", "not faster", "undecided"), found
    assert found["losses"]["ok"], found["losses"]
    assert "batches lie in page-locked memory" in done.output
    assert "the copies do not wait" in done.output


WAITS = SCRIPT.replace(
    "model = nn.Linear(16, 2)",
    """
import perfkit_double as double

class Model(nn.Linear):
    def forward(self, inputs):
        double.work(0.02)  # kernels, which the host only launches
        return super().forward(inputs)

model = Model(16, 2)""",
).replace(
    "        nn.functional.cross_entropy(model(batch), targets).backward()\n        optimizer.step()\n",
    """        loss = nn.functional.cross_entropy(model(batch), targets)
        loss.backward()
        optimizer.step()
        total = loss.item()
""",
)


def test_a_line_that_waits_for_the_device_is_not_blamed_for_its_work(tmp_path):
    (tmp_path / "train.py").write_text(WAITS)
    how = ["--budget", "3", "--json", "seen.json"]
    perfkit("watch", "train.py", *how, cwd=tmp_path)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["step"]["forward"] >= 0.019, "the device's time belongs to the part that gave it the work"
    assert not [found for found in seen["findings"] if "item()" in json.dumps(found)]
