# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 · Your own model and data
#
# **How fast is *your* training loop, and which switches help?**
#
# *About 3 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: your model and dataset in a module.*
#
# The measuring process and its loader workers import the workload, so it must be defined in a module: they cannot see a class that is defined in a notebook cell. The cell below writes such a module to a folder; put your own classes there. If you already have a package, skip the cell and name the class: `workload="package.module:Name"`.
#
# A workload has four methods: `dataset`, `model`, `loss`, `optimizer`. Optional are `prepare` (work on the device after the copy) and `offers` (further switches that it supports).

# %%
import sys
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp(prefix="perfkit-own-"))  # replace it with the folder of your code
module = '''
import torch
from torch import nn


class Waves(torch.utils.data.Dataset):
    """Synthetic signals; each takes some time to compute, as real samples do."""

    def __len__(self):
        return 2048

    def __getitem__(self, index):
        time = torch.linspace(0, 1, 512)
        kind = index % 3
        signal = torch.sin((kind + 1) * 40 * time) + 0.3 * torch.randn(512)
        return signal.unsqueeze(0), kind


class Mine:
    """The four methods that every workload has."""

    def dataset(self, recipe):
        return Waves()

    def model(self):
        return nn.Sequential(
            nn.Conv1d(1, 32, 9), nn.ReLU(), nn.Conv1d(32, 64, 9), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 3),
        )

    def loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters, **implementation):
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, **implementation)
'''
(folder / "my_training.py").write_text(module)
sys.path.insert(0, str(folder))

# %% [markdown]
# ## One stage
#
# The same panel as in the earlier chapters, on your workload.

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("data_loading", workload="my_training:Mine")
panel

# %%
panel.run()

# %%
panel.table()

# %%
panel.plot("step_time")

# %%
panel.verdict()

# %% [markdown]
# ## All switches

# %%
bench = pk.Workbench(workload="my_training:Mine")
bench

# %% [markdown]
# ## Exercise
#
# Run one more stage on this workload: any that applies here.

# %% tags=["exercise"]
trial = None  # pk.StagePanel(..., workload="my_training:Mine"), then trial.run()

# %% tags=["check"]
if trial is None:
    print("Your turn: replace None in the cell above.")
else:
    run = trial.runs[1]
    assert run.stage not in ("baseline", "data_loading"), "Choose another stage than the one above"
    assert run.status == "ok", f"It was not measured: {run.reason}"
    assert run.workload.endswith("Mine"), "Run it on your own workload"
    print(f"Right: {run.title}, {run.samples_per_s.value:.0f} samples/s")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# trial = pk.StagePanel("batch_size", workload="my_training:Mine")
# trial.run()
# ```
#
# </details>

# %% [markdown]
# Next: [12 what each is worth](12_what_each_is_worth.ipynb)
