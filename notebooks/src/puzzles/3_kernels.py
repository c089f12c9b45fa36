# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Puzzles: what the device computes
#
# You write the code: a few lines each, with what chapters 04, 06, 07 and 15 explain. Run a cell as often as you like; the last line of it checks what you wrote. *About 25 minutes. Needs: no GPU.*

# %%
import torch
import torch.nn.functional as F
from torch import nn

from perfkit import notebook as pk

# %% [markdown]
# ## One call instead of many
#
# From chapter [04](../04_batch_size.ipynb).

# %%
pk.puzzle("one_call")


# %%
def scores(queries, keys):
    rows = []
    for query in queries:
        rows.append(torch.stack([(query * key).sum() for key in keys]))
    return torch.stack(rows)


pk.puzzle("one_call").check(scores)

# %% [markdown]
# ## Autocast with a scaler
#
# From chapter [06](../06_amp.ipynb).

# %%
pk.puzzle("scaler")


# %%
def train_step(model, optimizer, scaler, inputs, targets):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


pk.puzzle("scaler").check(train_step)

# %% [markdown]
# ## Compile without a break
#
# From chapter [07](../07_compile.ipynb).

# %%
pk.puzzle("graph_break")


# %%
def gate(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


pk.puzzle("graph_break").check(gate)

# %% [markdown]
# ## Compile once, not for each length
#
# From chapter [07](../07_compile.ipynb).

# %%
pk.puzzle("recompiles")


# %%
def collate(sequences):
    longest = max(len(sequence) for sequence in sequences)
    tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return tokens, torch.arange(longest) < lengths[:, None]


pk.puzzle("recompiles").check(collate)

# %% [markdown]
# ## Pad the layer
#
# From chapter [15](../15_kernels_and_shapes.ipynb).

# %%
pk.puzzle("padding")


# %%
def pad_head(head):
    return head


pk.puzzle("padding").check(pad_head)

# %% [markdown]
# ## Channels last
#
# From chapter [15](../15_kernels_and_shapes.ipynb).

# %%
pk.puzzle("channels_last")


# %%
def prepare(model, images):
    return model, images


pk.puzzle("channels_last").check(prepare)

# %% [markdown]
# ## Fuse the optimizer
#
# From chapter [15](../15_kernels_and_shapes.ipynb).

# %%
pk.puzzle("fused_optimizer")


# %%
def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)


pk.puzzle("fused_optimizer").check(make_optimizer)

# %% [markdown]
# Next: [memory and ranks](4_memory.ipynb). Two answers to each of these, and three wrong ones: [solutions](solutions/3_kernels.ipynb).
