"""`%%watch` above a cell: its loop runs as ever, is observed, and the next step is named."""

from IPython.utils.capture import capture_output

CELL = """%%watch
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.zeros(12, 2)), batch_size=2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for (x,) in loader:
    model(x).sum().backward()
    optimizer.step()
"""


def test_a_cell_is_observed_and_its_error_is_raised_once_its_steps_are_shown(shell):
    shell.run_line_magic("load_ext", "perfkit")
    for more in ("done = True", "raise ValueError('no')"):
        with capture_output() as output:
            result = shell.run_cell(CELL + more)
        text = output.outputs[-1].data["text/plain"].replace("\n", " ")
        assert "samples/s" in text and "perfkit patch train.py" in text
    assert shell.user_ns["done"] is True
    assert isinstance(result.error_in_exec, ValueError) and output.stdout.count("Traceback") == 1
