# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions: memory and ranks
#
# Of each puzzle two answers that pass, and three that do not, with a part of what `check` says of them. Needs: nothing; reading takes 5 minutes. The puzzles: [memory and ranks](../4_memory.ipynb).

# %%
import contextlib

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

# %% [markdown]
# ## `accumulation`


# %% tags=["accumulation", "right"]
def train_step(model, optimizer, inputs, targets, micro):
    for some, labels in zip(inputs.split(micro), targets.split(micro), strict=True):
        loss = F.cross_entropy(model(some), labels) * len(some) / len(inputs)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# %% tags=["accumulation", "right"]
def train_step(model, optimizer, inputs, targets, micro):
    optimizer.zero_grad()
    for at in range(0, len(inputs), micro):
        outputs = model(inputs[at : at + micro])
        loss = F.cross_entropy(outputs, targets[at : at + micro], reduction="sum")
        (loss / len(inputs)).backward()
    optimizer.step()


# %% tags=["accumulation", "wrong"]
# says: It trains differently
def train_step(model, optimizer, inputs, targets, micro):
    parts = list(zip(inputs.split(micro), targets.split(micro), strict=True))
    for some, labels in parts:
        (F.cross_entropy(model(some), labels) / len(parts)).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% tags=["accumulation", "wrong"]
# says: steps after each part
def train_step(model, optimizer, inputs, targets, micro):
    for some, labels in zip(inputs.split(micro), targets.split(micro), strict=True):
        F.cross_entropy(model(some), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% tags=["accumulation", "wrong"]
# says: leave none out
def train_step(model, optimizer, inputs, targets, micro):
    whole = len(inputs) // micro * micro
    for at in range(0, whole, micro):
        loss = F.cross_entropy(model(inputs[at : at + micro]), targets[at : at + micro]) * micro / whole
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# %% [markdown]
# ## `checkpointing`


# %% tags=["checkpointing", "right"]
def forward(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x


# %% tags=["checkpointing", "right"]
def forward(blocks, x):
    for block in blocks:
        x = checkpoint(block.forward, x, use_reentrant=False, preserve_rng_state=False)
    return x


# %% tags=["checkpointing", "wrong"]
# says: all blocks again at once
def forward(blocks, x):
    def all_blocks(inputs):
        for block in blocks:
            inputs = block(inputs)
        return inputs

    return checkpoint(all_blocks, x, use_reentrant=False)


# %% tags=["checkpointing", "wrong"]
# says: nothing can be learnt
def forward(blocks, x):
    with torch.no_grad():
        for block in blocks:
            x = block(x)
    return x


# %% tags=["checkpointing", "wrong"]
# says: each of the 6 has to be computed twice
def forward(blocks, x):
    for number, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False) if number % 2 else block(x)
    return x


# %% [markdown]
# ## `embedding`


# %% tags=["embedding", "right"]
def place(model, device):
    model.body.to(device)


def predict(model, ids, device):
    return model.body(model.table(ids).to(device, non_blocking=True))


# %% tags=["embedding", "right"]
def place(model, device):
    for name, part in model.named_children():
        if name != "table":
            part.to(device)


def predict(model, ids, device):
    rows = F.embedding(ids, model.table.weight)
    return model.body(rows.to(device))


# %% tags=["embedding", "wrong"]
# says: The whole table is on the device
def place(model, device):
    model.to(device)


def predict(model, ids, device):
    return model.body(model.table(ids.to(device)))


# %% tags=["embedding", "wrong"]
# says: A step copies
def place(model, device):
    model.body.to(device)


def predict(model, ids, device):
    table = model.table.weight.to(device)
    return model.body(table[ids.to(device)])


# %% tags=["embedding", "wrong"]
# says: No gradient reaches the table
def place(model, device):
    model.body.to(device)


def predict(model, ids, device):
    with torch.no_grad():
        rows = model.table(ids)
    return model.body(rows.to(device))


# %% [markdown]
# ## `no_sync`


# %% tags=["no_sync", "right"]
def train_step(model, optimizer, parts):
    *others, last = parts
    with model.no_sync():
        for inputs, targets in others:
            (F.cross_entropy(model(inputs), targets) / len(parts)).backward()
    (F.cross_entropy(model(last[0]), last[1]) / len(parts)).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% tags=["no_sync", "right"]
def train_step(model, optimizer, parts):
    for number, (inputs, targets) in enumerate(parts, 1):
        with contextlib.nullcontext() if number == len(parts) else model.no_sync():
            loss = F.cross_entropy(model(inputs), targets) / len(parts)
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# %% tags=["no_sync", "wrong"]
# says: Is the forward pass in `no_sync`, too?
def train_step(model, optimizer, parts):
    for number, (inputs, targets) in enumerate(parts, 1):
        loss = F.cross_entropy(model(inputs), targets) / len(parts)
        with contextlib.nullcontext() if number == len(parts) else model.no_sync():
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# %% tags=["no_sync", "wrong"]
# says: never averaged
def train_step(model, optimizer, parts):
    with model.no_sync():
        for inputs, targets in parts:
            (F.cross_entropy(model(inputs), targets) / len(parts)).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% tags=["no_sync", "wrong"]
# says: It trains differently
def train_step(model, optimizer, parts):
    for number, (inputs, targets) in enumerate(parts, 1):
        with contextlib.nullcontext() if number == len(parts) else model.no_sync():
            F.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% [markdown]
# ## `set_epoch`


# %% tags=["set_epoch", "right"]
def epochs(loader, count):
    for epoch in range(count):
        loader.sampler.set_epoch(epoch)
        yield from loader


# %% tags=["set_epoch", "right"]
def epochs(loader, count):
    epoch = 0
    while epoch < count:
        loader.sampler.set_epoch(epoch + 1)
        for batch in loader:
            yield batch
        epoch += 1


# %% tags=["set_epoch", "wrong"]
# says: Two of three epochs
def epochs(loader, count):
    for epoch in range(count):
        yield from loader
        loader.sampler.set_epoch(epoch)


# %% tags=["set_epoch", "wrong"]
# says: does not know the epoch
def epochs(loader, count):
    loader.sampler.set_epoch(count)
    for _ in range(count):
        yield from loader


# %% tags=["set_epoch", "wrong"]
# says: should get 36
def epochs(loader, count):
    loader.sampler.set_epoch(0)
    yield from loader
