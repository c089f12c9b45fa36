# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Puzzles: the loop
#
# You write the code: a few lines each, with what chapters 01, 08, 14, 16, 18 and 20 explain. Run a cell as often as you like; the last line of it checks what you wrote. *About 25 minutes. Needs: no GPU.*

# %%
import time

import torch
import torch.nn.functional as F

from perfkit import notebook as pk

# %% [markdown]
# ## Time a GPU step
#
# From chapter [01](../01_baseline.ipynb).

# %%
pk.puzzle("timing")


# %%
def seconds_per_step(step, steps):
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


pk.puzzle("timing").check(seconds_per_step)

# %% [markdown]
# ## A loop without hidden waits
#
# From chapter [14](../14_hidden_transfers.ipynb).

# %%
pk.puzzle("waits")


# %%
def train(model, optimizer, batches):
    total, count = 0.0, 0
    for inputs, targets in batches:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        count += 1
        print(f"step {count}: {loss}")
    return total / count


pk.puzzle("waits").check(train)

# %% [markdown]
# ## A mask without a wait
#
# From chapter [14](../14_hidden_transfers.ipynb).

# %%
pk.puzzle("mask")


# %%
def masked_loss(logits, targets, mask):
    return F.cross_entropy(logits[mask], targets[mask])


pk.puzzle("mask").check(masked_loss)

# %% [markdown]
# ## A log that does not stop the device
#
# From chapter [14](../14_hidden_transfers.ipynb).

# %%
pk.puzzle("log_every")


# %%
def train(model, optimizer, batches, every, log):
    for step, (inputs, targets) in enumerate(batches, 1):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log(step, loss.item())


pk.puzzle("log_every").check(train)

# %% [markdown]
# ## Gradients that are not there
#
# From chapter [18](../18_memory.ipynb).

# %%
pk.puzzle("zero_grad")


# %%
def train_step(model, optimizer, inputs, targets):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad.zero_()
    return loss.detach()


pk.puzzle("zero_grad").check(train_step)

# %% [markdown]
# ## Ranges with names
#
# From chapter [16](../16_nvtx_and_nsight.ipynb).

# %%
pk.puzzle("ranges")


# %%
def train_step(model, optimizer, batches):
    inputs, targets = next(batches)
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


pk.puzzle("ranges").check(train_step)

# %% [markdown]
# ## A profile of the right steps
#
# From chapter [20](../20_profiling_by_hand.ipynb).

# %%
pk.puzzle("profiler")


# %%
def profile(step, steps):
    with torch.profiler.profile() as profiler:
        for _ in range(steps):
            step()
    return profiler


pk.puzzle("profiler").check(profile)

# %% [markdown]
# ## Find the three faults
#
# From chapter [08](../08_the_whole_ladder.ipynb).

# %%
pk.puzzle("three_faults")


# %%
def train(model, optimizer, make_loader, epochs):
    history = []
    for epoch in range(epochs):
        total, count = 0.0, 0
        for inputs, targets in make_loader():
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                right = (model(inputs).argmax(1) == targets).float().mean()
            total += loss.item()
            count += 1
        history.append(total / count)
    return history


pk.puzzle("three_faults").check(train)

# %% [markdown]
# Next: [what the device computes](3_kernels.ipynb). Two answers to each of these, and three wrong ones: [solutions](solutions/2_loop.ipynb).
