# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 14 · Hidden transfers
#
# **Which lines make the host wait for the device?**
#
# *About 2 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 3 (planned, not timed). Needs: nothing special; your own waits cost time only on a GPU.*
#
# A GPU works through a queue that the host fills. A line that *reads* a value, or needs a size that only the device knows, makes the host wait until the queue is empty; after that the device waits for the host to fill it again. You cannot see that in the code: `.item()`, `if loss > 1`, `x[mask]`, `print(loss)`, a `.cpu()` in a metric.
#
# ## The article's example
#
# In the article's program (in another framework), `shape` leaves its result on the CPU. `slice` runs on the GPU, so the result is copied up to it; `crop_tensor` needs it on the CPU, so it is copied down again. That makes 20 synchronous copies in 10 iterations, 70% of all copy time. The article's fix is to run the tiny `slice` on the CPU, and all 20 copies are gone.
#
# The article's total fell from 26.6 to 14.5 ms, but not because of the copies: they had taken only 1.03 ms (3.87%) of it. Of the 12.1 ms that the article saved, 6.4 ms are `shape`, whose slowest call (probably the first) took 8.0 ms in one run and 1.6 ms in the other; 1.5 ms are the executor's set-up, 1.4 ms `fill_constant`. `slice` and `crop_tensor`, including their copies, account for 2.4 ms. The fix is right, but the comparison is *confounded*: it gives the fix credit for differences in start-up. That is why perfkit leaves out warm-up and interleaves what it compares. ([Chapter 19](19_checking_the_articles.ipynb) has the arithmetic.)
#
# ## A training with such lines
#
# `perfkit.workloads.bottlenecks:Chatty` has a similar problem in PyTorch. The size of its crop is a tensor on the device, and the host reads height and width. It also indexes with a mask, and calls `.item()` on the loss. Here is its code:

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

name = "perfkit.workloads.bottlenecks:Chatty"
source = pk.source(name)
Markdown(f"```python\n{source}```")

# %% [markdown]
# ## Predict before you look
#
# How many copies and waits between host and device are there in each step?

# %%
syncs = pk.find_syncs(name)
syncs.table()

# %%
print(f"{syncs.a_step:g} copies and waits in a step, at {len(syncs.places)} places in the code.")

# %% [markdown]
# perfkit watches the calls, not the device, so it finds these places on a machine without a GPU too. On a GPU, it also reports whether the host memory of each copy was pinned, and adds the driver's own warnings. Pinned copies that do not block the host are listed too, although they are not waits.
#
# ## The same training without them

# %%
clean = pk.find_syncs(name, options={"clean": True})
clean.table()

# %% [markdown]
# ## What a wait costs
#
# A CPU has no second device to wait for. So here is a stand-in: a thread that works through a queue, as a GPU does, and sleeps for as long as a kernel would take. The host prepares the next batch meanwhile, unless it asks for a value:

# %%
import queue
import threading
import time


class Device:
    """Runs what is put into its queue, one after the other."""

    def __init__(self):
        self.queue = queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        """The device's side: takes a kernel, runs it."""
        while True:
            time.sleep(self.queue.get())
            self.queue.task_done()

    def launch(self, seconds):
        """Returns at once; the kernel runs later."""
        self.queue.put(seconds)

    def item(self):
        """Waits until the queue is empty."""
        self.queue.join()


def train(reads, steps=40, kernel_s=0.010, fetch_s=0.009):
    """Seconds per step of a loop that reads a value in every step, or only at the end."""
    device, start = Device(), time.perf_counter()
    for _ in range(steps):
        time.sleep(fetch_s)  # the next batch
        device.launch(kernel_s)
        if reads:
            device.item()
    device.item()
    return (time.perf_counter() - start) / steps


for title, reads in (("read at the end", False), ("read in every step", True)):
    print(f"{title}: {train(reads) * 1e3:.1f} ms per step")

# %% [markdown]
# Without reading, fetching is hidden behind the kernels, and a step takes as long as the longer of the two. With it, a step takes as long as both together.
#
# In your own code, put `with perfkit.detect_syncs() as syncs:` around some steps, then `print(syncs.table())`. In a test, `perfkit.assert_no_sync()` makes sure that no wait comes back.
#
# ## When it does not matter
#
# - A wait every hundred steps costs next to nothing: read the loss that often, not in every step.
# - If the step waits for data anyway, the device is idle with or without the wait.
# - Waits before the loop starts do not slow the loop down.
#
# ## What to remember
#
# - Any line that needs a *value* from the device, or a size that only the device knows, makes the host wait.
# - A wait costs what it keeps from overlapping: next to nothing once in a hundred steps, a large part of the step in each.
# - Guard a loop that has none with a test (`perfkit.assert_no_sync()`): the next `print(loss)` is easily written.
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. `loss.item()` takes 30 ms in a profile on the host. Where do the 30 ms come from?**
#
# <details><summary>Python is slow</summary>
#
# **No.** Not that slow: the call waits for the device.
#
# </details>
#
# <details><summary>Copying a float to the host is that slow</summary>
#
# **No.** The copy takes microseconds.
#
# </details>
#
# <details><summary>From all kernels that were still queued</summary>
#
# **Right.** `.item()` waits until the value has been computed. It collects the time of everything before it.
#
# </details>
#
# **2. A fix removed copies that took 4% of the time, and the total fell by 45%. What do you conclude?**
#
# <details><summary>Copies are much more expensive than they look</summary>
#
# **No.** Sometimes. Then the idle time after them must show on the timeline.
#
# </details>
#
# <details><summary>Something else changed, too</summary>
#
# **Right.** Copies that took 4% cannot have cost 45% by themselves, unless their waits kept the device idle. In the article it was a slow first call, which the fix does not touch.
#
# </details>
#
# <details><summary>The profiler measured the copies wrongly</summary>
#
# **No.** Compare the two reports row by row before you blame the tool.
#
# </details>

# %% [markdown]
# ## Exercise
#
# How many waits per step does the crop alone cause? Look for the calls of `__int__` in the table.

# %% tags=["exercise"]
answer = None  # a number

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    crop = sum(place.count for place in syncs.places if place.call in ("__int__", "item")) / syncs.steps
    crop -= 1  # the .item() of the loss
    assert answer == crop, "Height and width are read one by one"
    print(f"Right: {answer:g} per step, both read by the host. The article's had one copy in each direction")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = 2
# ```
#
# </details>

# %% [markdown]
# Next: [15 kernels and shapes](15_kernels_and_shapes.ipynb)
