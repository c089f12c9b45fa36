# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions
#
# For each puzzle, why it matters and an answer that passes. Try first; [the list of puzzles](index.ipynb) links to their chapters.

# %%
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

# %% [markdown]
# ## `timing`: time a GPU step
#
# The host launches a step and returns, so a clock around launches measures the host. Wait for the device twice: before the clock starts, because the warm-up may still run, and before it stops.


# %% tags=["timing", "right"]
def seconds_per_step(step, steps):
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


# %% [markdown]
# ## `profiler`: a profile of the right steps
#
# The schedule counts calls of `profiler.step()`. Without them it stays in its first phase and records nothing.


# %% tags=["profiler", "right"]
def profile(step, steps):
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    with torch.profiler.profile(schedule=schedule) as profiler:
        for _ in range(steps):
            step()
            profiler.step()
    return profiler


# %% [markdown]
# ## `loader`: the DataLoader line
#
# Two or more workers fetch while the loop trains. `persistent_workers` keeps them alive: starting them again costs seconds in every epoch. `drop_last` keeps all batches the same size, so that nothing recompiles.


# %% tags=["loader", "right"]
def make_loader(dataset, batch_size):
    return DataLoader(
        dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True
    )


# %% [markdown]
# ## `infinite_sampler`: an endless order
#
# A new permutation in each round gives each sample once per epoch, and the loader never reaches an end at which its queue would run empty.


# %% tags=["infinite_sampler", "right"]
def endless(length, generator):
    while True:
        yield from torch.randperm(length, generator=generator).tolist()


# %% [markdown]
# ## `pinned`: pinned, and the host goes on
#
# From pinned memory the copy needs no detour through a page-locked buffer, and with `non_blocking` the host queues it and goes on. Pinning alone makes the copy faster, but the host waits for it. `non_blocking` alone gains little, because a copy from ordinary memory stops the host in any case.


# %% tags=["pinned", "right"]
def make_loader(dataset, batch_size):
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=1,
        pin_memory=torch.cuda.is_available(),
    )


def to_device(images, labels, device):
    return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


# %% [markdown]
# ## `prefetcher`: a prefetcher that overlaps
#
# Copy and kernels overlap only on different streams. `wait_stream` keeps the model from reading a batch too early, without stopping the host. `record_stream` keeps the allocator from reusing its memory too early. `iter(batches)` is called once: a `for` loop inside `copy` would start a new epoch, with new workers, for every batch.


# %% tags=["prefetcher", "right"]
def prefetch(batches, device):
    copies, source = torch.cuda.Stream(), iter(batches)

    def copy():
        batch = next(source, None)
        if batch is not None:
            with torch.cuda.stream(copies):
                return batch.to(device, non_blocking=True)

    following = copy()
    while following is not None:
        torch.cuda.current_stream().wait_stream(copies)
        batch = following
        batch.record_stream(torch.cuda.current_stream())
        following = copy()
        yield batch


# %% [markdown]
# ## `accumulation`: fit into memory: accumulate
#
# Backward passes add to the gradients. The mean over the batch is the sum of the parts' means, each weighted by its share of the samples; the smaller last part is where an unweighted mean goes wrong.


# %% tags=["accumulation", "right"]
def train_step(model, optimizer, inputs, targets, micro):
    for some, labels in zip(inputs.split(micro), targets.split(micro), strict=True):
        loss = F.cross_entropy(model(some), labels) * len(some) / len(inputs)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# %% [markdown]
# ## `checkpointing`: fit into memory: recompute
#
# Autograd keeps only the input of each block, and computes the block again in backward. One checkpoint around all blocks saves nothing, because backward then needs all activations at once.


# %% tags=["checkpointing", "right"]
def forward(blocks, x):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x


# %% [markdown]
# ## `uint8`: normalise on the device
#
# Copy bytes, and convert where it is cheap. Converting before `.to(device)` copies four times as many bytes.


# %% tags=["uint8", "right"]
def to_device(images, device, mean, std):
    images = images.to(device, non_blocking=True).float() / 255
    return (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)


# %% [markdown]
# ## `batched_fetch`: a batch in one access
#
# A tensor indexed with a list gives the whole batch in one operator. The collate function must then pass the batch through, because it is one already. (A lambda cannot be pickled: for workers on macOS or Windows, make it a function with a name.)


# %% tags=["batched_fetch", "right"]
class Images(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]

    def __getitems__(self, indices):
        return self.images[indices], self.labels[indices]


def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, collate_fn=lambda batch: batch)


# %% [markdown]
# ## `scaler`: autocast with a scaler
#
# The loss is multiplied before backward so that small gradients survive float16. Clip after `unscale_`: the norm of scaled gradients means nothing.


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


# %% [markdown]
# ## `graph_break`: compile without a break
#
# Python's `if` needs a value, so tracing stops there. `torch.where` makes the decision part of the graph.


# %% tags=["graph_break", "right"]
def gate(x):
    return torch.where(x.sum() > 0, x * 2, x - 1)


# %% [markdown]
# ## `recompiles`: compile once, not for each length
#
# With `dynamic=False`, every new shape is compiled, up to eight; later ones run uncompiled. Rounding lengths up to a few buckets costs some padding and saves nearly all compilations, and every CUDA graph that would be recorded again. (By default a length becomes dynamic when it changes for the first time, and nothing compiles after that.)


# %% tags=["recompiles", "right"]
def collate(sequences):
    tokens = torch.zeros(len(sequences), 64, dtype=torch.int64)
    mask = torch.zeros(len(sequences), 64, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
    return tokens, mask


# %% [markdown]
# ## `three_faults`: find the three faults
#
# Workers start once, not in every epoch; the second pass through the model is never used; the loss is read once per epoch, not once per step.


# %% tags=["three_faults", "right"]
def train(model, optimizer, make_loader, epochs):
    loader, history = make_loader(), []
    for _ in range(epochs):
        losses = []
        for inputs, targets in loader:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        history.append(torch.stack(losses).mean().item())
    return history


# %% [markdown]
# ## `trace`: read a trace: how long is the device idle?
#
# Kernels on different streams overlap, so durations cannot be added. Sweep over them in order of their start, and count only what lies beyond the end so far.


# %% tags=["trace", "right"]
def idle_share(kernels, start, end):
    busy, busy_until = 0, start
    for begin, duration in sorted(kernels):
        begin, stop = max(begin, busy_until), min(begin + duration, end)
        if stop > begin:
            busy += stop - begin
            busy_until = stop
    return 1 - busy / (end - start)


# %% [markdown]
# ## `waits`: a loop without hidden waits
#
# `.item()`, `float(loss)`, `.cpu()` and `print(loss)` all read a value, and reading waits for everything that was launched before. Keep tensors, and read once at the end.


# %% tags=["waits", "right"]
def train(model, optimizer, batches):
    losses = []
    for inputs, targets in batches:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


# %% [markdown]
# ## `mask`: a mask without a wait
#
# The size of `logits[mask]` depends on values, so the host must wait for them. Compute all losses and weight them: sizes stay fixed.


# %% tags=["mask", "right"]
def masked_loss(logits, targets, mask):
    return F.cross_entropy(logits, targets.masked_fill(~mask, -100))


# %% [markdown]
# By hand, as for any other loss (a batch of nothing but padding is 0 / 0 in both):


# %% tags=["mask", "right"]
def masked_loss(logits, targets, mask):
    losses = F.cross_entropy(logits, targets, reduction="none")
    return (losses * mask).sum() / mask.sum()


# %% [markdown]
# ## `padding`: pad the layer
#
# Extra classes with weight 0 still take part in the softmax. A bias of -1e4 gives them probability 0, so loss and gradients stay as they are. (The head of a GPT often has no bias, and shares its weight with the embedding: there, pad the embedding and mask the logits.)


# %% tags=["padding", "right"]
def pad_head(head):
    size = -(-head.out_features // 8) * 8
    padded = nn.Linear(head.in_features, size, device=head.weight.device, dtype=head.weight.dtype)
    with torch.no_grad():
        padded.weight.zero_()
        padded.bias.fill_(-1e4)
        padded.weight[: head.out_features] = head.weight
        padded.bias[: head.out_features] = head.bias
    return padded


# %% [markdown]
# ## `fused_optimizer`: fuse the optimizer
#
# `fused=True` updates all parameters in few kernels. Decay belongs on matrices only, hence two groups.


# %% tags=["fused_optimizer", "right"]
def make_optimizer(model):
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, fused=True)


# %% [markdown]
# ## `no_sync`: average once per step
#
# DDP decides in the forward pass whether the next backward pass averages. So forward *and* backward of all parts but the last go inside `no_sync`.


# %% tags=["no_sync", "right"]
def train_step(model, optimizer, parts):
    *others, last = parts
    with model.no_sync():
        for inputs, targets in others:
            (F.cross_entropy(model(inputs), targets) / len(parts)).backward()
    (F.cross_entropy(model(last[0]), last[1]) / len(parts)).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% [markdown]
# ## The mystery loops
#
# Each cause with the edit that removes it. The scripts: [mystery loops](mysteries.ipynb).
#
# **`gpu_waits`.** Nobody reads the log, but its message is built anyway: an f-string is built before `log.debug` decides to drop it, and to format a tensor the host waits for its numbers.
#
# ```diff
# -            log.debug(f"epoch {epoch}: loss {loss}, outputs {outputs}")
# +            log.debug("epoch %d: loss %s, outputs %s", epoch, loss, outputs)
# ```
#
# **`slow_disk`.** `np.load` reads all 512 images to return one. Mapped into memory, only the pages of that image are read.
#
# ```diff
# -    def __len__(self):
# +    def __init__(self):
# +        self.images = np.load(FILE, mmap_mode="r")
# +
# +    def __len__(self):
# -        images = np.load(FILE)
# -        return torch.from_numpy(images[index]).float() / 255, index % 10
# +        return torch.from_numpy(self.images[index].copy()).float() / 255, index % 10
# ```
#
# **`larger_set`.** A property is a function call. This one normalises the whole data set, for every image.
#
# ```diff
# -import torch
# +import functools
# +
# +import torch
# -    @property
# +    @functools.cached_property
# ```
#
# **`idle_cores`.** `torch.set_num_threads(1)` is right in a worker, and wrong in the process that trains. A call "to be safe" set it there.
#
# ```diff
# -    start_worker(0)
# ```
#
# **`twice_the_memory`.** NumPy's numbers are float64. `.to(inputs)` then makes the model fit, and nothing complains. Consumer GPUs compute float64 at 1/32 or 1/64 of their speed.
#
# ```diff
# -    return torch.from_numpy(values), torch.from_numpy(labels)
# +    return torch.from_numpy(values).float(), torch.from_numpy(labels)
# ```
#
# **`out_of_memory`.** `eval()` turns off dropout, not autograd. The sum of the losses holds the graph of every batch, with all activations.
#
# ```diff
# -def validate(model, batches):
# +@torch.no_grad()
# +def validate(model, batches):
# ```
#
# **`slower_and_slower`.** Each epoch registers one more hook, and all of them are called in each forward pass.
#
# ```diff
# -    for _ in range(epochs):
# -        note_activations(model[0], norms)
# +    note_activations(model[0], norms)
# +    for _ in range(epochs):
# ```
#
# **`only_the_head`.** `eval()` and an optimizer with other parameters do not tell autograd that the backbone is frozen, so it computes gradients that nobody uses.
#
# ```diff
# -    backbone.eval()
# +    backbone.eval().requires_grad_(False)
# ```
#
# **`many_kernels`.** The penalty is a square, a sum and an addition for each parameter, and as many again in the backward pass. Its gradient is the optimizer's weight decay.
#
# ```diff
# -    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# +    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=DECAY)
# -            penalty = sum(weight.square().sum() for weight in model.parameters())
# -            (loss + DECAY / 2 * penalty).backward()
# +            loss.backward()
# ```
#
# **`three_copies`.** A plain attribute stays on the host when the model moves, so `.to` copies it in each forward pass. A buffer moves with the model.
#
# ```diff
# -        self.scale = torch.linspace(0.5, 1.5, 48)
# +        self.register_buffer("scale", torch.linspace(0.5, 1.5, 48))
# ```
#
# **`busy_workers`.** `iter(loader)` starts an epoch: workers start, fetch several batches ahead, and all but the first are thrown away.
#
# ```diff
# -import torch
# +import itertools
# +
# +import torch
# -    losses = []
# +    batches = itertools.chain.from_iterable(itertools.repeat(loader))
# +    losses = []
# -        inputs, targets = next(iter(loader))
# +        inputs, targets = next(batches)
# ```
#
# **`compiled`.** Compiled code is valid for the Python numbers that it read. `self.samples` changes in every step, so torch compiles eight versions and then gives up.
#
# ```diff
# -        self.samples += len(inputs)
#  ...
# -    print(f"{model.samples} samples seen")
# +    print(f"{64 * steps} samples seen")
# ```
