# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions: what the device computes
#
# Of each puzzle two answers that pass, and three that do not, with a part of what `check` says of them. Needs: nothing; reading takes 5 minutes. The puzzles: [what the device computes](../3_kernels.ipynb).

# %%
import torch
import torch.nn.functional as F
from torch import nn

# %% [markdown]
# ## `one_call`


# %% tags=["one_call", "right"]
def scores(queries, keys):
    return queries @ keys.T


# %% tags=["one_call", "right"]
def scores(queries, keys):
    return (queries[:, None] * keys[None]).sum(-1)


# %% tags=["one_call", "wrong"]
# says: still a loop
def scores(queries, keys):
    return torch.stack([keys @ query for query in queries])


# %% tags=["one_call", "wrong"]
# says: a row for each of the 6 queries
def scores(queries, keys):
    return keys @ queries.T


# %% tags=["one_call", "wrong"]
# says: not the dot products
def scores(queries, keys):
    return torch.cdist(queries, keys)


# %% [markdown]
# ## `scaler`


# %% tags=["scaler", "right"]
def train_step(model, optimizer, scaler, inputs, targets):
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach()


# %% tags=["scaler", "right"]
def train_step(model, optimizer, scaler, inputs, targets):
    optimizer.zero_grad()
    forward = torch.autocast(inputs.device.type, torch.float16)(
        lambda: F.cross_entropy(model(inputs), targets)
    )
    loss = forward()
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.unscale_(optimizer)
    norm = torch.stack([weight.grad.norm() for weight in model.parameters()]).norm()
    for weight in model.parameters():
        weight.grad.mul_(torch.clamp(1.0 / (norm + 1e-6), max=1.0))
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


# %% tags=["scaler", "wrong"]
# says: is not scaled
def train_step(model, optimizer, scaler, inputs, targets):
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# %% tags=["scaler", "wrong"]
# says: clipped while they are scaled
def train_step(model, optimizer, scaler, inputs, targets):
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(inputs), targets)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach()


# %% tags=["scaler", "wrong"]
# says: needs no scaler
def train_step(model, optimizer, scaler, inputs, targets):
    with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
        loss = F.cross_entropy(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach()


# %% [markdown]
# ## `graph_break`


# %% tags=["graph_break", "right"]
def gate(x):
    return torch.where(x.sum() > 0, x * 2, x - 1)


# %% tags=["graph_break", "right"]
def gate(x):
    positive = (x.sum() > 0).to(x.dtype)
    return positive * (x * 2) + (1 - positive) * (x - 1)


# %% tags=["graph_break", "wrong"]
# says: has to break the graph
def gate(x):
    return x * 2 if x.sum().item() > 0 else x - 1


# %% tags=["graph_break", "wrong"]
# says: has to break the graph
@torch.compiler.disable
def gate(x):
    return torch.where(x.sum() > 0, x * 2, x - 1)


# %% tags=["graph_break", "wrong"]
# says: the result is not that of the starter
def gate(x):
    return torch.where(x > 0, x * 2, x - 1)


# %% [markdown]
# ## `recompiles`


# %% tags=["recompiles", "right"]
def collate(sequences):
    tokens = torch.zeros(len(sequences), 64, dtype=torch.int64)
    mask = torch.zeros(len(sequences), 64, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
    return tokens, mask


# %% tags=["recompiles", "right"]
def collate(sequences):
    longest = max(map(len, sequences))
    length = -(-longest // 32) * 32
    tokens = torch.stack([F.pad(sequence, (0, length - len(sequence))) for sequence in sequences])
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return tokens, torch.arange(length) < lengths[:, None]


# %% tags=["recompiles", "wrong"]
# says: too many lengths are left
def collate(sequences):
    longest = max(map(len, sequences))
    length = -(-longest // 8) * 8
    tokens = torch.stack([F.pad(sequence, (0, length - len(sequence))) for sequence in sequences])
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return tokens, torch.arange(length) < lengths[:, None]


# %% tags=["recompiles", "wrong"]
# says: was cut
def collate(sequences):
    tokens = torch.zeros(len(sequences), 32, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens[row, : min(32, len(sequence))] = sequence[:32]
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return tokens, torch.arange(32) < lengths[:, None]


# %% tags=["recompiles", "wrong"]
# says: The mask is not true exactly
def collate(sequences):
    tokens = torch.stack([F.pad(sequence, (0, 64 - len(sequence))) for sequence in sequences])
    return tokens, torch.ones_like(tokens, dtype=torch.bool)


# %% [markdown]
# ## `padding`


# %% tags=["padding", "right"]
def pad_head(head):
    padded = nn.Linear(head.in_features, -(-head.out_features // 8) * 8)
    with torch.no_grad():
        padded.weight.zero_()
        padded.bias.fill_(-1e4)
        padded.weight[: head.out_features] = head.weight
        padded.bias[: head.out_features] = head.bias
    return padded


# %% tags=["padding", "right"]
def pad_head(head):
    more = -head.out_features % 8
    padded = nn.Linear(head.in_features, head.out_features + more)
    padded.weight = nn.Parameter(F.pad(head.weight.detach(), (0, 0, 0, more)))
    padded.bias = nn.Parameter(F.pad(head.bias.detach(), (0, more), value=-float("inf")))
    return padded


# %% tags=["padding", "wrong"]
# says: take a part of the probability
def pad_head(head):
    padded = nn.Linear(head.in_features, -(-head.out_features // 8) * 8)
    with torch.no_grad():
        padded.weight.zero_()
        padded.bias.zero_()
        padded.weight[: head.out_features] = head.weight
        padded.bias[: head.out_features] = head.bias
    return padded


# %% tags=["padding", "wrong"]
# says: some are lost
def pad_head(head):
    size = head.out_features // 8 * 8
    padded = nn.Linear(head.in_features, size)
    with torch.no_grad():
        padded.weight.copy_(head.weight[:size])
        padded.bias.copy_(head.bias[:size])
    return padded


# %% tags=["padding", "wrong"]
# says: the next multiple of 8
def pad_head(head):
    padded = nn.Linear(head.in_features, (head.out_features // 8 + 1) * 8)
    with torch.no_grad():
        padded.weight.zero_()
        padded.bias.fill_(-1e4)
        padded.weight[: head.out_features] = head.weight
        padded.bias[: head.out_features] = head.bias
    return padded


# %% [markdown]
# ## `channels_last`


# %% tags=["channels_last", "right"]
def prepare(model, images):
    model = model.to(memory_format=torch.channels_last)
    return model, images.to(memory_format=torch.channels_last)


# %% tags=["channels_last", "right"]
def prepare(model, images):
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model, images.contiguous(memory_format=torch.channels_last)


# %% tags=["channels_last", "wrong"]
# says: The images are still NCHW
def prepare(model, images):
    return model.to(memory_format=torch.channels_last), images


# %% tags=["channels_last", "wrong"]
# says: convert the model
def prepare(model, images):
    return model, images.to(memory_format=torch.channels_last)


# %% tags=["channels_last", "wrong"]
# says: the layout changes, not the shape
def prepare(model, images):
    return model.to(memory_format=torch.channels_last), images.permute(0, 2, 3, 1).contiguous()


# %% [markdown]
# ## `fused_optimizer`


# %% tags=["fused_optimizer", "right"]
def make_optimizer(model):
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, fused=True)


# %% tags=["fused_optimizer", "right"]
def make_optimizer(model):
    groups = [{"params": [weight], "weight_decay": 0.1 * (weight.ndim > 1)} for weight in model.parameters()]
    return torch.optim.AdamW(groups, lr=3e-4, fused=True)


# %% tags=["fused_optimizer", "wrong"]
# says: the wrong weight decay
def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)


# %% tags=["fused_optimizer", "wrong"]
# says: not the fused implementation
def make_optimizer(model):
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, foreach=True)


# %% tags=["fused_optimizer", "wrong"]
# says: should be AdamW
def make_optimizer(model):
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.Adam(groups, lr=3e-4, fused=True)
