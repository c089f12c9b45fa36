# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 · Your own
#
# **Where does the time of *your* training script go, which switches help, and what is the edit?**
#
# *About 5 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 5 (planned, not timed). Needs: a script that trains; three examples are in `data/scripts/`.*
#
# Name your script and its arguments. It is started as you start it, in a process of its own, and not a line of it changes: its steps are seen from outside, and it ends after those that are measured. It works in a mirror of its folder, so that no checkpoint or log of yours is touched.
#
# | the example | is built as | is slow because |
# |---|---|---|
# | `plain_loop.py` | most tutorials: one loop, one loader | it decodes JPEG files in the loop |
# | `trainer_style.py` | scripts for Hugging Face's Trainer | it splits text into tokens in the loop, and pads all of it to the same length |
# | `module_style.py` | scripts for Lightning | it filters its signals again in every epoch |

# %%
from perfkit import notebook as pk

panel = pk.script_panel("data/scripts/plain_loop.py", args=["--images", 160])
panel

# %% [markdown]
# ## Watch it
#
# Some steps as they are: samples/s, the wait for data, the rate on a held batch (what the model could do if data were free), a profile, and what to try. A predicted gain follows from what was seen; `≤` marks a bound, as if the switch cost nothing and removed all of its part; n/a means that only measuring tells.

# %%
panel.watch()

# %%
panel.report()

# %% [markdown]
# ## Set a switch from outside
#
# *Watch* greys the switches that cannot be set in this script; the mark beside each says why. The others are set while the script starts: a loader gets other arguments, a model another memory layout. Both sides are then alive; blocks of their steps are interleaved. The losses of the first steps show whether it still trains the same.

# %%
panel.set(channels_last=True)
panel.run()

# %% [markdown]
# ## Take the edit
#
# *Patch* shows the edit of the script that has these switches by itself, at the lines that were seen to run. Nothing is written; *Save perfkit.diff* downloads it for `git apply`. In a terminal, `perfkit patch` also measures the edited script against the switches set from outside, and `--write` edits the file.

# %%
panel.patch()

# %%
panel.diff()

# %% [markdown]
# The same in a terminal:
#
# ```bash
# perfkit watch train.py -- --epochs 5
# perfkit compare --script train.py --set workers=2 --set amp=bf16 -- --epochs 5
# perfkit tune --script train.py -- --epochs 5
# perfkit patch train.py --set workers=2 -- --epochs 5
# ```
#
# ## Every switch: a workload
#
# What needs your data set's own code (uint8 batches, resizing on the device, several ranks) cannot be set from outside. For all switches, write your training as a workload: a class with four methods, in a module that other processes can import.

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

bench = pk.Workbench(workload="my_training:Mine")
bench

# %% [markdown]
# ## Exercise
#
# Set another switch in the script, and find out whether it still trains the same: any that can be set here.

# %% tags=["exercise"]
trial = None  # pk.script_panel("data/scripts/plain_loop.py", ...), then trial.set(...) and trial.run()

# %% tags=["check"]
if trial is None:
    print("Your turn: replace None in the cell above.")
else:
    assert trial.comparisons, f"It was not measured: {trial.error or 'call .run()'}"
    newest = trial.comparisons[-1]
    changed = [proof.switch for proof in newest.b.mechanism]
    assert changed != ["channels_last"], "Set another switch than the one above"
    assert all(proof.ok for proof in newest.b.mechanism), "A switch is not in effect"
    print(f"Right: {', '.join(changed)} is in effect; {newest.describe()}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# trial = pk.script_panel("data/scripts/plain_loop.py", args=["--images", 160])
# trial.set(optimizer_impl="fused")
# trial.run()
# ```
#
# </details>

# %% [markdown]
# Next: [12 what each is worth](12_what_each_is_worth.ipynb)
