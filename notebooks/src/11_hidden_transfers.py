# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 · Hidden transfers
#
# **Which lines make the host wait, and where should a layer live?** *20 minutes. Needs: nothing special; your own waits cost time only on a GPU.*
#
# *After this you can find the lines of a loop that stop the host, say what each costs, and keep them out.*
#
# The host launches kernels and runs ahead of the device. A line that *reads* a value, or needs a size that only the device knows, stops it until everything launched before is done. Then the device waits for new work:
#
# `.item()` · `print(loss)` · `if loss > 1` · `.cpu()` · `x[mask]` · `nonzero()` · `torch.tensor(n, device="cuda")`

# %%
from perfkit import notebook as pk

pk.lanes("hidden-waits")

# %% [markdown]
# ## Find them
#
# How many times does the host wait in one step of this loop?

# %%
import torch
from torch import nn

import perfkit

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(4, 32, 16, device=device)
targets = torch.randint(4, (4, 32), device=device)


def train():
    total = 0.0
    for x, y in zip(inputs, targets, strict=True):
        is_real = y > 0
        loss = nn.functional.cross_entropy(model(x)[is_real], y[is_real])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    return total


with perfkit.detect_syncs() as places:
    train()
for place in places:
    print(f"{place.count / len(inputs):g} in each step: {place.call}\n   {place.fix}")


# %% [markdown]
# Now without them: `ignore_index` leaves padding out of the mean, and the total is read once.


# %%
def train_without_waiting():
    total = torch.zeros((), device=device)
    for x, y in zip(inputs, targets, strict=True):
        loss = nn.functional.cross_entropy(model(x), y, ignore_index=0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
    return total


with perfkit.detect_syncs() as places:
    train_without_waiting()
assert not places

# %% [markdown]
# (Other losses: `reduction="none"`, times the mask, and the sum divided by `mask.sum()`. A batch of nothing but padding gives NaN either way.)
#
# Leave that `assert` in a test and the next stray `print(loss)` fails it. Even without a GPU, perfkit finds nearly all waits, including the one that a mask causes in backward. It misses only copies such as `torch.tensor(n, device="cuda")`. On a GPU, `torch.cuda.set_sync_debug_mode("warn")` is PyTorch's own detector.
#
# ## What a wait costs
#
# With a GPU, the next cell times a loop that reads the loss in every step, and one that reads it at the end. Without one, a thread stands in for the device, and sleeps for as long as a kernel would run.

# %%
import queue
import threading
import time


class StandIn:
    """Runs what is put into its queue, one after the other, and notes when."""

    def __init__(self):
        self.queue, self.spans = queue.Queue(), []
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            seconds, start = self.queue.get(), time.perf_counter()
            time.sleep(seconds)
            self.spans.append((start, time.perf_counter()))
            self.queue.task_done()

    def launch(self):
        self.queue.put(0.010)

    def item(self):
        self.queue.join()

    def ran(self):
        return self.spans


class Gpu:
    """A matrix product as a step, and its sum as the loss; events note when it ran."""

    def __init__(self):
        self.x, self.marks = torch.randn(4096, 4096, device="cuda"), []
        torch.cuda.synchronize()
        self.zero, self.at = self.mark(), time.perf_counter()

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def launch(self):
        start = self.mark()
        self.loss = (self.x @ self.x).sum()
        self.marks.append((start, self.mark()))

    def item(self):
        return self.loss.item()

    def ran(self):
        return [[self.at + self.zero.elapsed_time(mark) / 1e3 for mark in pair] for pair in self.marks]


def timed(device, reads, steps=30, fetch_s=0.009):
    """Seconds per step, and what the host did."""
    device.launch()
    device.item()
    host, start = [], time.perf_counter()
    for step in range(steps):
        begin = time.perf_counter()
        time.sleep(fetch_s)  # the next batch
        fetched = time.perf_counter()
        device.launch()
        if reads:
            device.item()
        host.append((begin, fetched, "load", step))
        host.append((fetched, time.perf_counter(), "wait", step, 0, "loss"))
    device.item()
    return (time.perf_counter() - start) / steps, host


def two_steps(device, host, first=10):
    """The rows of two steps of the device for a picture, in milliseconds from the first one's start."""
    zero, last = (device.ran()[first + at][0] for at in (1, 3))
    kernels = [(*span, "compute", step) for step, span in enumerate(device.ran(), -1)]

    def row(bars):
        shown = [bar for bar in bars if bar[0] < last and bar[1] > zero]
        return [(1e3 * (start - zero), 1e3 * (min(end, last) - zero), *what) for start, end, *what in shown]

    return {"steps": 2, "host": row(host), "kernels": row(kernels)}


sides = {}
for title, reads in (("read in every step", True), ("read at the end", False)):
    stand_in = Gpu() if torch.cuda.is_available() else StandIn()
    seconds, host = timed(stand_in, reads)
    print(f"{title}: {seconds * 1e3:.1f} ms a step")
    sides[title] = two_steps(stand_in, host)

pk.lanes(sides)

# %% [markdown]
# If the loop reads nothing, a step takes as long as fetching or the kernels, whichever is longer. If it reads in every step, it takes the sum. So the distributed guide tells you to fetch results every 30 steps (its own listing fetches in each: [14](14_checking_the_articles.ipynb)).
#
# ## The placement guide's example
#
# In the guide, `shape` leaves its output on the CPU. `slice` runs on the GPU and pulls it up; `crop_tensor` needs it on the CPU and pulls it down: 20 synchronous copies in 10 iterations, 70% of all copy time. The fix: run the tiny `slice` on the CPU.
#
# The guide's totals fall from 26.6 to 14.5 ms, 1.83 times, but most of both are first calls. The fix is worth 1.35 times ([14](14_checking_the_articles.ipynb)).
#
# ## Where should a layer live?
#
# Its second example is a table that does not fit: 10,000,000 × 150 float32 values take 5.59 GiB. Each step needs few rows, so the table can stay on the host, and only they are copied:

# %%
table = nn.Embedding(10_000, 150, sparse=True)  # on the host; a small one here
body = nn.Linear(150, 4).to(device)
on_host = torch.optim.SGD(table.parameters(), lr=0.1)
body(table(torch.tensor([3, 14, 15])).to(device)).sum().backward()
on_host.step()
print(
    f"{table.weight.nbytes:,} bytes stay; {table.weight.grad.coalesce().values().nbytes:,} bytes of gradient"
)

# %% [markdown]
# Without `sparse=True`, its gradient is as large as the table. SGD, Adagrad and SparseAdam accept sparse gradients; AdamW raises an error. A table that fits stays on the device.

# %% [markdown]
# ### Puzzle ★: a loop without hidden waits
#
# *About 10 minutes.*

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
# ### Puzzle ★★: a mask without a wait
#
# *About 15 minutes.*

# %%
pk.puzzle("mask")


# %%
def masked_loss(logits, targets, mask):
    return F.cross_entropy(logits[mask], targets[mask])


pk.puzzle("mask").check(masked_loss)

# %% [markdown]
# ## Check yourself
#
# **`loss.item()` takes 30 ms in a profile of the host. Where does that time go?**
#
# <details><summary>Answer</summary>
#
# Into waiting: the kernels that were still queued must end before the value is there.
#
# </details>
#
# **A fix removes copies that took 4% of the time, and the total falls by 45%. What do you do first?**
#
# <details><summary>Answer</summary>
#
# Leave the first calls out, and compare row by row.
#
# </details>
#
# **Does a wait always matter?**
#
# <details><summary>Answer</summary>
#
# Not while the step waits for data anyway, and not outside the loop. Log every hundredth step.
#
# </details>
#
# Next: [12 kernels and shapes](12_kernels_and_shapes.ipynb)
