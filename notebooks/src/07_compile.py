# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 · Compile
#
# **What do fused kernels gain, and when does compiling pay for itself?** *13 minutes. Needs: a C++ compiler on a CPU; Triton and a C compiler on a GPU.*
#
# *After this you can say what `torch.compile` changed in a step, and after how many steps it has paid for itself.*
#
# The walk-through's V100, simulated. Only the kernels change.

# %%
import torch
from torch import nn
from torch.utils.benchmark import Timer

from perfkit import notebook as pk

pk.lanes("sim-v100-compile")

# %% [markdown]
# Between convolutions and products are small operators: norms, activations, sums. Each reads all of its input from memory and writes all of its output. `torch.compile` captures the model as a graph and *fuses* such chains into single kernels.
#
# `small_ones` has four operators, which read or write nine tensors in all; fused, three: `x`, `y` and the result. *Guess, for this machine: how many times as fast is the compiled chain? And a compiled convolution?*

# %%
device = "cuda" if torch.cuda.is_available() else "cpu"


def numbers(*shape):
    return torch.randn(shape, device=device).to(memory_format=torch.channels_last)


x, y, weight = numbers(32, 32, 48, 48), numbers(32, 32, 48, 48), numbers(32, 32, 3, 3)


def small_ones(x, y):
    return torch.relu(x * 1.5 + 0.5) + y


def convolution(x, y):
    return nn.functional.conv2d(x, weight, padding=1)


threads = torch.get_num_threads()  # as in your loop: a Timer uses one, if it isn't told

for function in (small_ones, convolution):
    ms = []
    for one in (function, torch.compile(function)):
        timer = Timer("one(x, y)", globals={"one": one, "x": x, "y": y}, num_threads=threads)
        timer.timeit(20)  # the first call compiles
        ms.append(timer.blocked_autorange(min_run_time=1).median * 1e3)
    print(f"{function.__name__}: {ms[0]:.1f} ms, compiled {ms[1]:.2f} ms: {ms[0] / ms[1]:.1f} times as fast")

# %% [markdown]
# The tensors say three times. A CPU may gain more: each operator also requests memory, which your loop already reuses ([04](04_batch_size.ipynb)), and three tensors may fit into a cache. Expect less in your loop. A convolution calls a library, compiled or not. Which of the two fills *your* step? Guess its gain:

# %%
panel = pk.StagePanel("compile")
panel

# %%
panel.run()

# %%
before, after = panel.runs[:2]
gain = after.speedup("previous")
if after.compile_s and gain:
    saved_s = before.step_s.value * (1 - 1 / gain.ratio)
    if gain.is_faster:
        answer = f"after {after.compile_s / saved_s:,.0f} steps"
    elif gain.verdict == "undecided":
        answer = "not known yet, because the gain is undecided"
    else:
        answer = "never, because it is not faster"
    print(f"compiling took {after.compile_s:.1f} s; when does it pay for itself? {answer}")

# %% [markdown]
# **First look at the worker's row in the panel's picture above.**
#
# - **It never rests, and the host waits (orange)**: computing has become so short that the worker sets the pace. Nothing that shortens it further can gain much.
# - **It rests**: the verdict is the compiler's. Expect 1.0 to 1.1 times on a CPU, where convolutions fill the step. The walk-through's V100 went from 2,477 to 3,268 samples/s, 1.32 times.
#
# ## Your lines: first the bytes
#
# If the worker sets the pace, give it less work: the uint8 batches of [05](05_uint8_copy.ipynb), which hardly helped while it had time to spare. In `my_train.py`, keep the images as uint8, and convert them to floats between -1 and 1 after the copy. *Guess: and now?*

# %%
pk.my_train(budget_s=120)

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# transform = T.Compose([T.Resize(96), T.CenterCrop(96), T.PILToTensor()])
#
# images = (images.to(torch.float32) / 255 - 0.5) / 0.5
# ```
#
# Augmentations that need floats must move to the device too.
#
# </details>
#
# *Faster*: what a change gains depends on the bottleneck. If it is undecided but the loop waits less, keep it with `keep=True`. If the loop still waits, add a worker, if you have a core to spare.
#
# ## Then compile

# %%
pk.my_train(budget_s=120)

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# model = torch.compile(model)
# ```
#
# Move the model and set its layout first. `model.compile()` does the same in place.
#
# </details>
#
# Undecided, or no difference? In the stored output waits rose from 7% to 13%: what small operators saved is spent waiting for the worker. Undo the line, which costs seconds at each start.
#
# ## What made the V100 faster?
#
# Simulated, also with `channels_last` on both sides:

# %%
from perfkit.recipe import Recipe

recorded = {run.stage: run.recipe for run in pk.recording("sim-v100").found}
for layout in (False, True):
    for stage in ("amp", "compile"):
        recipe = Recipe.from_dict(recorded[stage] | {"channels_last": layout})
        view = pk.profile("cifar_resnet18", recipe, device="sim:v100", host="article", preset="paper")
        ms = {True: 0.0, False: 0.0}
        for kernel in view.analysis.kernels:
            ms["conv" in kernel.operator] += kernel.total_us / 1e3 / len(view.analysis.steps)
        print(
            f"channels_last={layout!s:5} {stage:8} convolutions {ms[True]:3.0f} ms, the rest {ms[False]:3.0f} ms"
        )

# %% [markdown]
# Most of the gain is in the convolutions, which are not fused: the simulation *assumes* that the compiler gives them the layout NHWC, as later versions of PyTorch do. With that layout on both sides only fusion is left, about 5%. PyTorch 2.0 did not change layouts yet, so where the walk-through's 32% came from is not known.
#
# Three things spoil a compiled loop:
#
# - *Graph breaks*: Python that needs a value (`if loss > 1`, `.item()`) splits the graph. `fullgraph=True` makes that an error with the line.
# - *New shapes* compile again: once, after which that size is dynamic. `TORCH_LOGS=graph_breaks,recompiles` lists both.
# - *Launch-bound models* need CUDA graphs (`mode="reduce-overhead"`), which replay all launches in one call; these need fixed shapes.

# %% [markdown]
# ### Puzzle ★★: compile without a break
#
# *About 15 minutes.*

# %%
pk.puzzle("graph_break")


# %%
def gate(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


pk.puzzle("graph_break").check(gate)

# %% [markdown]
# ### Puzzle ★★: compile once, not for each length
#
# *About 20 minutes.*

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
# ## Check yourself
#
# **Which part of a step does fusion speed up most?**
#
# <details><summary>Answer</summary>
#
# Chains of element-wise operators.
#
# </details>
#
# **Compiling took 40 s, and a step is 10 ms shorter. When has it paid for itself?**
#
# <details><summary>Answer</summary>
#
# After 4,000 steps.
#
# </details>
#
# **What else is cheap to try for a launch-bound step?**
#
# <details><summary>Answer</summary>
#
# A fused optimizer: `torch.optim.SGD(..., fused=True)`.
#
# </details>
#
# Next: [08 the whole ladder](08_the_whole_ladder.ipynb)
