# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions: loading data
#
# Of each puzzle two answers that pass, and three that do not, with a part of what `check` says of them. Needs: nothing; reading takes 5 minutes. The puzzles: [loading data](../1_loading.ipynb).

# %%
import itertools

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

# %% [markdown]
# ## `loader`


# %% tags=["loader", "right"]
def make_loader(dataset, batch_size):
    return DataLoader(
        dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True
    )


# %% tags=["loader", "right"]
def make_loader(dataset, batch_size):
    batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=True)
    return DataLoader(dataset, batch_sampler=batches, num_workers=3, persistent_workers=True)


# %% tags=["loader", "wrong"]
# says: fetches the samples itself
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=0)


# %% tags=["loader", "wrong"]
# says: fetched by other processes
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=2)


# %% tags=["loader", "wrong"]
# says: shuffle them
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size, drop_last=True, num_workers=2, persistent_workers=True)


# %% [markdown]
# ## `worker_seed`


# %% tags=["worker_seed", "right"]
def seed_worker(worker_id):
    info = torch.utils.data.get_worker_info()
    info.dataset.rng = np.random.default_rng(info.seed)


# %% tags=["worker_seed", "right"]
def seed_worker(worker_id):
    dataset = torch.utils.data.get_worker_info().dataset
    dataset.rng = np.random.default_rng([worker_id, torch.initial_seed() % 2**32])


# %% tags=["worker_seed", "wrong"]
# says: Two workers draw the same
def seed_worker(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)


# %% tags=["worker_seed", "wrong"]
# says: repeats the numbers of the first
def seed_worker(worker_id):
    torch.utils.data.get_worker_info().dataset.rng = np.random.default_rng(worker_id)


# %% tags=["worker_seed", "wrong"]
# says: cannot be repeated
def seed_worker(worker_id):
    torch.utils.data.get_worker_info().dataset.rng = np.random.default_rng()


# %% [markdown]
# ## `infinite_sampler`


# %% tags=["infinite_sampler", "right"]
def endless(length, generator):
    while True:
        yield from torch.randperm(length, generator=generator).tolist()


# %% tags=["infinite_sampler", "right"]
class endless:
    def __init__(self, length, generator):
        self.length, self.generator = length, generator

    def __iter__(self):
        for _ in itertools.count():
            for index in torch.randperm(self.length, generator=self.generator):
                yield index.item()


# %% tags=["infinite_sampler", "wrong"]
# says: repeat the same order
def endless(length, generator):
    return itertools.cycle(torch.randperm(length, generator=generator).tolist())


# %% tags=["infinite_sampler", "wrong"]
# says: each sample exactly once
def endless(length, generator):
    while True:
        yield int(torch.randint(length, (), generator=generator))


# %% tags=["infinite_sampler", "wrong"]
# says: does not come from the given generator
def endless(length, generator):
    while True:
        yield from torch.randperm(length).tolist()


# %% [markdown]
# ## `batched_fetch`


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


# %% tags=["batched_fetch", "right"]
class Images(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        rows = torch.as_tensor(indices)
        return [part.index_select(0, rows) for part in (self.images, self.labels)]


def already_a_batch(batch):
    return tuple(batch)


def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size, collate_fn=already_a_batch)


# %% tags=["batched_fetch", "wrong"]
# says: one by one
class Images(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        return [(self.images[index], self.labels[index]) for index in indices]


def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size)


# %% tags=["batched_fetch", "wrong"]
# says: stacks what is a batch already
class Images(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        return self.images[indices], self.labels[indices]


def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size)


# %% tags=["batched_fetch", "wrong"]
# says: other samples than were asked for
class Images(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        rows = slice(indices[0], indices[0] + len(indices))
        return self.images[rows], self.labels[rows]


def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, collate_fn=lambda batch: batch)


# %% [markdown]
# ## `pinning`


# %% tags=["pinning", "right"]
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, pin_memory=True)


def to_device(batch, device):
    images, labels = batch
    return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


# %% tags=["pinning", "right"]
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size, shuffle=True, num_workers=2, pin_memory=True)


def to_device(batch, device):
    return [part.to(device=device, non_blocking=True) for part in batch]


# %% tags=["pinning", "wrong"]
# says: say `non_blocking=True`
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, pin_memory=True)


def to_device(batch, device):
    images, labels = batch
    return images.to(device, non_blocking=True), labels.to(device)


# %% tags=["pinning", "wrong"]
# says: does not pin
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, num_workers=2)


def to_device(batch, device):
    return [part.to(device, non_blocking=True) for part in batch]


# %% tags=["pinning", "wrong"]
# says: both on the device
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, pin_memory=True)


def to_device(batch, device):
    images, labels = batch
    images.to(device, non_blocking=True)
    labels.to(device, non_blocking=True)
    return images, labels


# %% [markdown]
# ## `prefetcher`


# %% tags=["prefetcher", "right"]
def prefetch(batches, device):
    copies = torch.cuda.Stream()

    def copy():
        for batch in batches:
            with torch.cuda.stream(copies):
                return batch.to(device, non_blocking=True)

    following = copy()
    while following is not None:
        torch.cuda.current_stream().wait_stream(copies)
        batch = following
        batch.record_stream(torch.cuda.current_stream())
        following = copy()
        yield batch


# %% tags=["prefetcher", "right"]
class prefetch:
    def __init__(self, batches, device):
        self.batches, self.device = iter(batches), device
        self.stream = torch.cuda.Stream(device)
        self.preload()

    def preload(self):
        batch = next(self.batches, None)
        self.following = None
        if batch is not None:
            with torch.cuda.stream(self.stream):
                self.following = batch.to(self.device, non_blocking=True)

    def __iter__(self):
        return self

    def __next__(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.following
        if batch is None:
            raise StopIteration
        batch.record_stream(torch.cuda.current_stream())
        self.preload()
        return batch


# %% tags=["prefetcher", "wrong"]
# says: use a second stream
def prefetch(batches, device):
    following = None
    for batch in batches:
        current, following = following, batch.to(device, non_blocking=True)
        if current is not None:
            yield current
    yield following


# %% tags=["prefetcher", "wrong"]
# says: before its copy has ended
def prefetch(batches, device):
    copies = torch.cuda.Stream()
    following = None
    for batch in itertools.chain(batches, [None]):
        current = following
        if batch is not None:
            with torch.cuda.stream(copies):
                following = batch.to(device, non_blocking=True)
        if current is not None:
            current.record_stream(torch.cuda.current_stream())
            yield current


# %% tags=["prefetcher", "wrong"]
# says: call `record_stream`
def prefetch(batches, device):
    copies = torch.cuda.Stream()
    following = None
    for batch in itertools.chain(batches, [None]):
        torch.cuda.current_stream().wait_stream(copies)
        current = following
        if batch is not None:
            with torch.cuda.stream(copies):
                following = batch.to(device, non_blocking=True)
        if current is not None:
            yield current


# %% tags=["prefetcher", "wrong"]
# says: ahead of the model
def prefetch(batches, device):
    copies = torch.cuda.Stream()
    with torch.cuda.stream(copies):
        copied = [batch.to(device, non_blocking=True) for batch in batches]
    torch.cuda.current_stream().wait_stream(copies)
    for batch in copied:
        batch.record_stream(torch.cuda.current_stream())
        yield batch


# %% [markdown]
# ## `uint8`


# %% tags=["uint8", "right"]
def to_device(images, device, mean, std):
    images = images.to(device, non_blocking=True).float() / 255
    return (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)


# %% tags=["uint8", "right"]
def to_device(images, device, mean, std):
    scale = 1 / (255 * std)
    there = images.to(device)
    return there * scale[None, :, None, None] - (mean / std)[None, :, None, None]


# %% tags=["uint8", "wrong"]
# says: copied as float32
def to_device(images, device, mean, std):
    images = images.to(device, torch.float32) / 255
    return (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)


# %% tags=["uint8", "wrong"]
# says: The numbers are not
def to_device(images, device, mean, std):
    return (images.to(device).float() - mean.view(3, 1, 1)) / std.view(3, 1, 1)


# %% tags=["uint8", "wrong"]
# says: Return float32
def to_device(images, device, mean, std):
    images = images.to(device).half() / 255
    return (images - mean.half().view(3, 1, 1)) / std.half().view(3, 1, 1)
