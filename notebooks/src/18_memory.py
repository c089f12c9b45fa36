# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 18 · Memory
#
# **What holds memory in a training step, and what makes it less?**
#
# *About 2 minutes at the preset `quick` on two cores. Needs: nothing special.*
#
# Four things are there all the time: *weights*, *gradients*, *optimizer state*, the *batch*. *Activations* are made in forward and kept until backward has used them; *workspace* comes and goes. The peak is where their sum is highest: most often at the start of backward.
#
# perfkit keeps account of every tensor's storage while a step runs, on a CPU as on a GPU.

# %%
from perfkit import notebook as pk

recipes = {
    "plain": {},
    "gradients to None": {"zero_grad_set_to_none": True},
    "bf16": {"amp": "bf16"},
    "half the batch, twice": {"accumulation": 2, "batch_size": pk.LadderPanel().plan.preset.batch_size // 2},
    "checkpointing": {"activation_checkpointing": True},
}
found = pk.memory(recipes, workload="cifar_resnet18")
found.table("At the peak")

# %%
found.plot("held")

# %% [markdown]
# ## When, and where
#
# The highest point of each phase, and the lines that hold most at the peak of the plain loop:

# %%
found.table("Highest")

# %%
found.table("Largest at the peak: plain")

# %% [markdown]
# ## What it costs
#
# Checkpointing gives activations up and computes them again: memory for time. Is it worth it here?

# %%
panel = pk.RecipePanel({"plain": {}, "checkpointing": {"activation_checkpointing": True}}, workload="cifar_resnet18")
panel

# %%
panel.run()

# %%
panel.table()

# %%
panel.verdict()

# %%
panel.parity("checkpointing")

# %% [markdown]
# ## When memory runs out
#
# A run that does not fit ends with a message that says so, and what to lower; the notebook and the other runs go on. On a GPU the allocator's own figures stand beside ours: *reserved* above *allocated* is memory that it keeps for later; much of it means fragmentation.
#
# A large table of which each step uses few rows can stay in host memory: the switch `embedding_device=cpu` leaves embeddings there. The article's table of 10,000,000 × 150 needs 5.59 GiB of device memory, all of it saved; forward, backward and sparse gradients work. Try it on a GPU with the workload `perfkit.workloads.bottlenecks:Recommender`.
#
# ## When it does not help
#
# - Where weights and optimizer state are most of the peak, giving up activations changes little.
# - 16-bit autocast keeps the weights in 32 bits, and casts of them come on top: a small batch can need more than before.
# - `accumulation` needs small batches to save anything.
#
# ## Exercise
#
# SGD with momentum keeps one value for each weight that is trained. How many times the gradients' bytes does the optimizer hold in the plain loop?

# %% tags=["exercise"]
answer = None  # found.found[0]["parts"] has the bytes

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    held = found.found[0]["parts"]
    assert abs(answer - held["optimizer"] / held["gradients"]) < 0.01, (
        "Divide the optimizer's bytes by the gradients'"
    )
    print(f"Right: {answer:.2f} times")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# held = found.found[0]["parts"]
# answer = held["optimizer"] / held["gradients"]
# ```
#
# </details>

# %% [markdown]
# Back to [00 start here](00_start_here.ipynb)
