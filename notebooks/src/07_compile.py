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
# **What do fused kernels gain, and when does compiling pay for itself?** *9 minutes. Needs: a C++ compiler on a CPU; Triton and a C compiler on a GPU.*
#
# *After this you can say what `torch.compile` changed in a step, and after how many steps it has paid for itself.*
#
# The walk-through's V100, simulated. Only the kernels change. Guess which: convolutions, or the small ones between them?

# %%
import torch

from perfkit import notebook as pk

pk.lanes("sim-v100-compile")

# %% [markdown]
# Between convolutions and products are small operators such as norms, activations and sums. Each reads all of its input from memory and writes all of its output. `torch.compile` captures the model as a graph and *fuses* such chains into single kernels. Compiling takes time in the first step.

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
# **Look at the worker's row first.**
#
# - **It never rests, and the host waits (orange)**: the loop is loader-bound again. What you kept made computing so short that the worker sets the pace, and nothing that shortens computing can gain. What compiling does to the kernels shows in *compute only*.
# - **It rests**: the verdict is the compiler's. Expect 1.0 to 1.1 times on a CPU, because convolutions are library calls with or without it. The walk-through's V100 went from 2,477 to 3,268 samples/s, 1.32 times.
#
# If the worker sets the pace, go back to [05](05_uint8_copy.ipynb): uint8 batches give it less work. That hardly showed while it had time to spare. And now? Guess:

# %%
kept = before.recipe
again = pk.RecipePanel({"kept so far": kept, "uint8 batches": kept | {"uint8_copy": True}})
again.run()

# %% [markdown]
# *Faster*: what a change gains depends on the bottleneck. Not faster, and the host still waits: converting is a small part of the worker's work. With cores to spare, add a worker ([02](02_data_loading.ipynb)).
#
# ## What made the V100 faster?
#
# Simulated, and the same with `channels_last` on both sides:

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
# Most of the gain is in the convolutions, which the compiler does not fuse: the simulation *assumes* that it gives them the layout NHWC, as later versions of PyTorch do. With that layout on both sides only fusion is left, about 5%. (The methods slides fuse add + relu, bn + relu and bn + add + relu: about 6% on ResNet-50.) PyTorch 2.0 did not change layouts yet, so where the walk-through's 32% came from is not known.
#
# Three things spoil a compiled loop:
#
# - *Graph breaks*: Python that needs a value (`if loss > 1`, `.item()`) splits the graph. `fullgraph=True` turns that into an error that names the line.
# - *New shapes* compile again: once, after which that size is dynamic. `TORCH_LOGS=graph_breaks,recompiles` lists both.
# - *Launch-bound models* need more than fusion. `mode="reduce-overhead"` records CUDA graphs, which the host launches at once; these need fixed shapes.

# %% [markdown]
# ## Your line
#
# Does the host wait in `my_train.py`, too? Then put the uint8 lines back first, and run this cell. If not, compile the model.

# %%
pk.my_train()

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# model = torch.compile(model)
# ```
#
# Not kept? Undo it. Move the model and set its layout before. `model.compile()` does the same in place.
#
# </details>

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
# Chains of element-wise operators, which then read and write memory once.
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
