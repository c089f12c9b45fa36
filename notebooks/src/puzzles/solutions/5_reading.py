# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions: figures and traces
#
# Of each puzzle two answers that pass, and three that do not, with a part of what `check` says of them. Needs: nothing; reading takes 5 minutes. The puzzles: [figures and traces](../5_reading.ipynb).

# %%
import math

import torch
import torch.nn.functional as F
from torch import nn

# %% [markdown]
# ## `trace`


# %% tags=["trace", "right"]
def idle_share(kernels, start, end):
    busy, busy_until = 0, start
    for begin, duration in sorted(kernels):
        begin, stop = max(begin, busy_until), min(begin + duration, end)
        if stop > begin:
            busy += stop - begin
            busy_until = stop
    return 1 - busy / (end - start)


# %% tags=["trace", "right"]
def idle_share(kernels, start, end):
    changes = []
    for begin, duration in kernels:
        begin, stop = max(begin, start), min(begin + duration, end)
        if begin < stop:
            changes += [(begin, 1), (stop, -1)]
    idle, running, last = 0, 0, start
    for at, change in sorted(changes):
        if running == 0:
            idle += at - last
        running, last = running + change, at
    return (idle + end - last) / (end - start)


# %% tags=["trace", "wrong"]
# says: A kernel within the time of another one
def idle_share(kernels, start, end):
    busy = sum(max(0, min(begin + duration, end) - max(begin, start)) for begin, duration in kernels)
    return 1 - busy / (end - start)


# %% tags=["trace", "wrong"]
# says: A kernel within the time of another one
def idle_share(kernels, start, end):
    idle, last = 0, start
    for begin, duration in sorted(kernels):
        idle += max(0, begin - last)
        last = begin + duration
    return (idle + max(0, end - last)) / (end - start)


# %% tags=["trace", "wrong"]
# says: Kernels that reach out of the window
def idle_share(kernels, start, end):
    busy, busy_until = 0, 0
    for begin, duration in sorted(kernels):
        begin, stop = max(begin, busy_until), begin + duration
        if stop > begin:
            busy += stop - begin
            busy_until = stop
    return 1 - busy / (end - start)


# %% [markdown]
# ## `recipe`


# %% tags=["recipe", "right"]
def recipe():
    return {"workers": 4, "pin_memory": True, "non_blocking": True}


# %% tags=["recipe", "right"]
def recipe():
    return {
        "workers": 4,
        "prefetch_factor": 4,
        "pin_memory": True,
        "non_blocking": True,
    }


# %% tags=["recipe", "wrong"]
# says: the workers do not keep up
def recipe():
    return {"workers": 3, "pin_memory": True, "non_blocking": True}


# %% tags=["recipe", "wrong"]
# says: the copy is in the way
def recipe():
    return {"workers": 4, "non_blocking": True}


# %% tags=["recipe", "wrong"]
# says: another one changes the training
def recipe():
    return {"workers": 4, "pin_memory": True, "non_blocking": True, "batch_size": 8}


# %% [markdown]
# ## `workload`


# %% tags=["workload", "right"]
class Spirals:
    def dataset(self, recipe):
        angle = torch.linspace(0, 12, 300)
        label = torch.arange(300) % 3
        turned = angle / 4 + label * 2.1
        points = torch.stack([turned.cos(), turned.sin()], 1) * angle[:, None] / 12
        return torch.utils.data.TensorDataset(points, label)

    def model(self):
        return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def loss(self, outputs, targets):
        return F.cross_entropy(outputs, targets)

    def optimizer(self, parameters, **implementation):
        return torch.optim.Adam(parameters, lr=0.01, **implementation)


# %% tags=["workload", "right"]
class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        angle, label = index / 512 * 10, index % 3
        turned = angle / 4 + label * 2.1
        return torch.tensor([math.cos(turned), math.sin(turned)]) * angle / 10, label


class Spirals:
    loss = staticmethod(nn.CrossEntropyLoss())

    def dataset(self, recipe):
        return Points()

    def model(self):
        return nn.Sequential(nn.Linear(2, 96), nn.Tanh(), nn.Linear(96, 3))

    def optimizer(self, parameters, **implementation):
        return torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.0, **implementation)


# %% tags=["workload", "wrong"]
# says: hand on `**implementation`
class Spirals:
    def dataset(self, recipe):
        angle = torch.linspace(0, 12, 300)
        label = torch.arange(300) % 3
        turned = angle / 4 + label * 2.1
        points = torch.stack([turned.cos(), turned.sin()], 1) * angle[:, None] / 12
        return torch.utils.data.TensorDataset(points, label)

    def model(self):
        return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 3))

    def loss(self, outputs, targets):
        return F.cross_entropy(outputs, targets)

    def optimizer(self, parameters, **implementation):
        return torch.optim.Adam(parameters, lr=0.01)


# %% tags=["workload", "wrong"]
# says: The loss does not fall
class Spirals:
    def dataset(self, recipe):
        angle = torch.linspace(0, 12, 300)
        label = torch.arange(300) % 3
        turned = angle / 4 + label * 2.1
        points = torch.stack([turned.cos(), turned.sin()], 1) * angle[:, None] / 12
        return torch.utils.data.TensorDataset(points, label)

    def model(self):
        return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 3))

    def loss(self, outputs, targets):
        return F.cross_entropy(outputs.softmax(1), targets) + 0 * outputs.sum()

    def optimizer(self, parameters, **implementation):
        return torch.optim.SGD(parameters, lr=1e-5, **implementation)


# %% tags=["workload", "wrong"]
# says: at least 256
class Spirals:
    def dataset(self, recipe):
        angle = torch.linspace(0, 12, 90)
        label = torch.arange(90) % 3
        return torch.utils.data.TensorDataset(torch.stack([angle.cos(), angle.sin()], 1), label)

    def model(self):
        return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 3))

    def loss(self, outputs, targets):
        return F.cross_entropy(outputs, targets)

    def optimizer(self, parameters, **implementation):
        return torch.optim.Adam(parameters, lr=0.01, **implementation)


# %% [markdown]
# ## `worth`


# %% tags=["worth", "right"]
def worth(plain, a, b, both):
    first, second = plain / a * b / both, plain / b * a / both
    return math.sqrt(first), math.sqrt(second)


# %% tags=["worth", "right"]
def worth(plain, a, b, both):
    log_plain, log_a, log_b, log_both = map(math.log, (plain, a, b, both))
    first = ((log_plain - log_a) + (log_b - log_both)) / 2
    return math.exp(first), math.exp(log_plain - log_both - first)


# %% tags=["worth", "wrong"]
# says: The product of the factors is
def worth(plain, a, b, both):
    return (plain / a + b / both) / 2, (plain / b + a / both) / 2


# %% tags=["worth", "wrong"]
# says: does it depend on the order?
def worth(plain, a, b, both):
    return plain / a, a / both


# %% tags=["worth", "wrong"]
# says: does it depend on the order?
def worth(plain, a, b, both):
    return math.sqrt(plain / both), math.sqrt(plain / both)


# %% [markdown]
# ## `workers`


# %% tags=["workers", "right"]
def workers(fetch_s, batch, step_s, cores):
    needed = math.ceil(fetch_s * batch / step_s)
    return needed if needed <= cores else None


# %% tags=["workers", "right"]
def workers(fetch_s, batch, step_s, cores):
    for count in range(1, cores + 1):
        if fetch_s * batch / count <= step_s:
            return count


# %% tags=["workers", "wrong"]
# says: still waits for data
def workers(fetch_s, batch, step_s, cores):
    needed = max(1, round(fetch_s * batch / step_s))
    return needed if fetch_s * batch / step_s <= cores else None


# %% tags=["workers", "wrong"]
# says: it should be None
def workers(fetch_s, batch, step_s, cores):
    return min(cores, math.ceil(fetch_s * batch / step_s))


# %% tags=["workers", "wrong"]
# says: would do
def workers(fetch_s, batch, step_s, cores):
    return cores if fetch_s * batch / step_s <= cores else None


# %% [markdown]
# ## `claim`


# %% tags=["claim", "right"]
def gigabytes_per_s(batch, side, bytes_per_value, copy_ms):
    return batch * 3 * side**2 * bytes_per_value / (copy_ms / 1e3) / 1e9


# %% tags=["claim", "right"]
def gigabytes_per_s(batch, side, bytes_per_value, copy_ms):
    gigabytes = math.prod((batch, 3, side, side, bytes_per_value)) * 1e-9
    return gigabytes / copy_ms * 1000


# %% tags=["claim", "wrong"]
# says: you have divided by 2³⁰
def gigabytes_per_s(batch, side, bytes_per_value, copy_ms):
    return batch * 3 * side**2 * bytes_per_value / (copy_ms / 1e3) / 2**30


# %% tags=["claim", "wrong"]
# says: three channels
def gigabytes_per_s(batch, side, bytes_per_value, copy_ms):
    return batch * side**2 * bytes_per_value / (copy_ms / 1e3) / 1e9


# %% tags=["claim", "wrong"]
# says: Milliseconds were taken for seconds
def gigabytes_per_s(batch, side, bytes_per_value, copy_ms):
    return batch * 3 * side**2 * bytes_per_value / copy_ms / 1e9
