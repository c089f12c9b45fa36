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
# The host launches kernels and runs ahead of the device. A line that *reads* a value, or needs a size that only the device knows, stops it until everything launched before is done. Then the device waits for new work. You cannot see it in the code:
#
# `.item()` · `print(loss)` · `if loss > 1` · `.cpu()` · `x[mask]` · `nonzero()` · `torch.tensor(n, device="cuda")`
#
# ## Find them
#
# This training has several. How many waits has a step?

# %%
import inspect

from IPython.display import Markdown

from perfkit import notebook as pk
from perfkit.additions.inside.chatty import Chatty

Markdown(f"```python\n{inspect.getsource(Chatty)}```")

# %%
name = "perfkit.additions.inside.chatty:Chatty"
syncs = pk.find_syncs(name)
syncs.table()

# %%
clean = pk.find_syncs(name, options={"clean": True})
print(f"{syncs.found.a_step:g} copies and waits a step; in the cleaned version {clean.found.a_step:g}")

# %% [markdown]
# perfkit watches the calls, so it finds them without a GPU too. In your own code: `torch.cuda.set_sync_debug_mode("warn")` is PyTorch's own detector on a GPU; `with perfkit.detect_syncs() as places:` works everywhere; `assert not places` after it keeps the next `print(loss)` out.
#
# ## What a wait costs
#
# With a GPU, the next cell times a real loop that reads the loss in every step, and one that reads it at the end. Without one, a thread stands in for the device: it works through a queue and sleeps as long as a kernel would run.

# %%
import queue
import threading
import time

import torch


class StandIn:
    """Runs what is put into its queue, one after the other."""

    def __init__(self):
        self.queue = queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            time.sleep(self.queue.get())
            self.queue.task_done()

    def launch(self):
        self.queue.put(0.010)

    def item(self):
        self.queue.join()


class Gpu:
    """A matrix product as a step, and its sum as the loss."""

    def __init__(self):
        self.x = torch.randn(4096, 4096, device="cuda")

    def launch(self):
        self.loss = (self.x @ self.x).sum()

    def item(self):
        return self.loss.item()


def train(device, reads, steps=30, fetch_s=0.009):
    """Seconds a step."""
    device.launch()
    device.item()
    start = time.perf_counter()
    for _ in range(steps):
        time.sleep(fetch_s)  # the next batch
        device.launch()
        if reads:
            device.item()
    device.item()
    return (time.perf_counter() - start) / steps


for title, reads in (("read at the end", False), ("read in every step", True)):
    device = Gpu() if torch.cuda.is_available() else StandIn()
    print(f"{title}: {train(device, reads) * 1e3:.1f} ms a step")

# %% [markdown]
# Without reading, fetching hides behind the kernels, and a step takes as long as the longer of the two. With it, a step takes both. A wait costs the work that could have run at the same time. The distributed guide therefore fetches results every 30 steps, not in each.
#
# ## The placement guide's example
#
# In the guide, `shape` leaves its output on the CPU. `slice` runs on the GPU and pulls it up; `crop_tensor` needs it on the CPU and pulls it down. That makes 20 synchronous copies in 10 iterations, 70% of all copy time. The fix: run the tiny `slice` on the CPU, and all 20 are gone.
#
# The guide's totals fall from 26.6 to 14.5 ms, 1.83 times. Most of both totals are first calls. Without the slowest call of each operator they are 8.08 and 4.79 ms: 1.69 times. The two operators that the fix touches go from 2.91 to 0.83 ms, which alone is worth 1.35 times. So the fix is worth a third, and the headline claims more, because warm-up was not left out. ([14](14_checking_the_articles.ipynb) has the rows.)
#
# The method holds: look for synchronous copies in the report, find the operator, then the line, move it, compare the two reports.
#
# ## Where should a layer live?
#
# Its second example is a table that does not fit: an embedding of 10,000,000 × 150 float32 values takes 5.59 GiB. Each step needs few of its rows, so it can stay on the host, and only the rows are copied: `body(table(ids).to("cuda"))`. Use `nn.Embedding(..., sparse=True)`, or its gradient is as large as the table. If it fits on the device, leave it there.

# %% [markdown]
# **`loss.item()` takes 30 ms in a profile of the host. Where do they come from?**
#
# <details><summary>Copying a float is that slow</summary>
#
# **No.** The copy takes microseconds.
#
# </details>
#
# <details><summary>From the kernels that were still queued</summary>
#
# **Right.** `.item()` waits until the value has been computed. It collects the time of everything before it.
#
# </details>

# %% [markdown]
# **A fix removes copies that took 4% of the time, and the total falls by 45%. What do you do first?**
#
# <details><summary>Conclude that copies cost more than they look</summary>
#
# **No.** Perhaps: the idle time after them counts too. But the totals hold other things.
#
# </details>
#
# <details><summary>Leave the first calls out, and compare row by row</summary>
#
# **Right.** In the guide, most of the total was start-up. What remained still fell by 41%, and the two operators explain a good part of it.
#
# </details>
#
# <details><summary>Distrust the fix</summary>
#
# **No.** The operators that it touches did get 3.5 times as fast.
#
# </details>

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
# ## Keep in mind
#
# - Log every hundredth step.
# - A wait does not matter while the step waits for data anyway, or before the loop.
#
# Next: [12 kernels and shapes](12_kernels_and_shapes.ipynb)
