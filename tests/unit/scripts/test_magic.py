"""`%%watch` above a cell: its loop runs as ever, is observed, and the next step is named."""

import pytest
from IPython.utils.capture import capture_output

from perfkit.errors import InvalidValue
from perfkit.scripts import magic

SETUP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.zeros(12, 2)), batch_size=2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""
LOOP = """for (x,) in loader:
    model(x).sum().backward()
    optimizer.step()
done = True
"""


@pytest.fixture(autouse=True)
def _with_perfkit(shell):
    shell.run_line_magic("load_ext", "perfkit")


def test_a_cell_is_observed_in_the_kernel(shell):
    shell.run_cell(SETUP, store_history=True)
    with capture_output() as output:
        shell.run_cell(f"%%watch\n{LOOP}")
    assert shell.user_ns["done"] is True
    text = output.outputs[-1].data["text/plain"]
    assert "samples/s" in text and "steps" in text
    assert "cannot be set for a cell" in text.replace("\n", " ") and "perfkit patch train.py" in text


def test_the_error_of_a_cell_is_raised_once_its_steps_are_shown(shell):
    shell.run_cell(SETUP, store_history=True)
    with capture_output() as output:
        result = shell.run_cell(f"%%watch\n{LOOP}raise ValueError('no')")
    assert isinstance(result.error_in_exec, ValueError)
    assert "samples/s" in output.outputs[-1].data["text/plain"] and output.stdout.count("Traceback") == 1


def test_the_cells_become_a_script(shell, tmp_path):
    shell.run_cell("%load_ext perfkit\n" + SETUP, store_history=True)
    script = tmp_path / "train.py"
    with capture_output():
        shell.run_cell(f"%%watch {script}\n{LOOP}", store_history=True)
    text = script.read_text()
    assert "model = torch.nn.Linear" in text and "optimizer.step()" in text and "%" not in text
    compile(text, "train.py", "exec")
    with pytest.raises(InvalidValue, match="cannot save"):
        magic.save(script, ["x = 1"])
