# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Puzzles: figures and traces
#
# You write the code: a few lines each, with what chapters 09 to 13, and 19 explain. Run a cell as often as you like; the last line of it checks what you wrote. *About 20 minutes. Needs: no GPU.*

# %%
import torch

from perfkit import notebook as pk

# %% [markdown]
# ## Read a trace: how long is the device idle?
#
# From chapter [09](../09_reading_a_profile.ipynb).

# %%
pk.puzzle("trace")


# %%
def idle_share(kernels, start, end):
    busy = sum(duration for _, duration in kernels)
    return 1 - busy / (end - start)


pk.puzzle("trace").check(idle_share)

# %% [markdown]
# ## The recipe for a machine
#
# From chapter [10](../10_workbench.ipynb).

# %%
pk.puzzle("recipe")


# %%
def recipe():
    return {"workers": 0}


pk.puzzle("recipe").check(recipe)

# %% [markdown]
# ## Bring your own
#
# From chapter [11](../11_your_own.ipynb).

# %%
pk.puzzle("workload")


# %%
class Spirals:
    def dataset(self, recipe):
        angle = torch.linspace(0, 12, 300)
        label = torch.arange(300) % 3
        turned = angle / 4 + label * 2.1
        points = torch.stack([turned.cos(), turned.sin()], 1) * angle[:, None] / 12
        return torch.utils.data.TensorDataset(points, label)


pk.puzzle("workload").check(Spirals)

# %% [markdown]
# ## What is each worth?
#
# From chapter [12](../12_what_each_is_worth.ipynb).

# %%
pk.puzzle("worth")


# %%
def worth(plain, a, b, both):
    return plain / a, plain / b


pk.puzzle("worth").check(worth)

# %% [markdown]
# ## How many workers?
#
# From chapter [13](../13_what_if.ipynb).

# %%
pk.puzzle("workers")


# %%
def workers(fetch_s, batch, step_s, cores):
    return cores


pk.puzzle("workers").check(workers)

# %% [markdown]
# ## Can that be?
#
# From chapter [19](../19_checking_the_articles.ipynb).

# %%
pk.puzzle("claim")


# %%
def gigabytes_per_s(batch, side, bytes_per_value, copy_ms):
    return batch * side * bytes_per_value / copy_ms


pk.puzzle("claim").check(gigabytes_per_s)

# %% [markdown]
# Next: [the capstone](6_capstone.ipynb). Two answers to each of these, and three wrong ones: [solutions](solutions/5_reading.ipynb).
