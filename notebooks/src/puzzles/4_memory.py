# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Puzzles: memory and ranks
#
# You write the code: a few lines each, with what chapters 17 and 18 explain. Run a cell as often as you like; the last line of it checks what you wrote. *About 20 minutes. Needs: no GPU.*

# %%
import torch.nn.functional as F

from perfkit import notebook as pk

# %% [markdown]
# ## Fit into the memory: accumulate
#
# From chapter [18](../18_memory.ipynb).

# %%
pk.puzzle("accumulation")


# %%
def train_step(model, optimizer, inputs, targets, micro):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


pk.puzzle("accumulation").check(train_step)

# %% [markdown]
# ## Fit into the memory: compute again
#
# From chapter [18](../18_memory.ipynb).

# %%
pk.puzzle("checkpointing")


# %%
def forward(blocks, x):
    for block in blocks:
        x = block(x)
    return x


pk.puzzle("checkpointing").check(forward)

# %% [markdown]
# ## A table that does not fit
#
# From chapter [18](../18_memory.ipynb).

# %%
pk.puzzle("embedding")


# %%
def place(model, device):
    model.to(device)


def predict(model, ids, device):
    return model.body(model.table(ids.to(device)))


pk.puzzle("embedding").check(place, predict)

# %% [markdown]
# ## Average once, not for each part
#
# From chapter [17](../17_distributed.ipynb).

# %%
pk.puzzle("no_sync")


# %%
def train_step(model, optimizer, parts):
    for inputs, targets in parts:
        loss = F.cross_entropy(model(inputs), targets) / len(parts)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


pk.puzzle("no_sync").check(train_step)

# %% [markdown]
# ## Every rank, every epoch, another order
#
# From chapter [17](../17_distributed.ipynb).

# %%
pk.puzzle("set_epoch")


# %%
def epochs(loader, count):
    for epoch in range(count):
        yield from loader


pk.puzzle("set_epoch").check(epochs)

# %% [markdown]
# Next: [figures and traces](5_reading.ipynb). Two answers to each of these, and three wrong ones: [solutions](solutions/4_memory.ipynb).
