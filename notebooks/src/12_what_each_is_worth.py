# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12 · What each optimization is worth
#
# **How much does each optimization contribute, independent of the order?**
#
# *About 4 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: nothing special.*
#
# A ladder credits each stage with what it adds to the stages below it. So its answer depends on the order, and the order is arbitrary: faster computation gains little while the step waits for data, and a lot once it does not. Here every subset of three optimizations is measured, interleaved with the baseline. This gives the speed-up of each optimization *alone*, *on top of all the others*, and averaged over all orders: its Shapley value. The product of the Shapley values is the speed-up of all three together.

# %%
from perfkit import notebook as pk

names = ["data_loading", "channels_last", "amp"]

# %% [markdown]
# ## Predict before you run
#
# Which one is worth most on average? And is it worth more alone, or when the others are already on?

# ## Run
#
# All runs are stored. If you stop this cell, or its time budget runs out, run it again to continue.

# %%
worth = pk.attribute(names, minutes=4, workload="photos")
worth.table()

# %%
worth.plot()

# %%
worth.words()

# %%
best = max(worth.found.effects, key=lambda effect: effect.shapley or 0)
print(f"Worth most on average: {best.name}")

# %% [markdown]
# ## When the answer misleads
#
# - If the intervals of two optimizations overlap, you cannot tell which is worth more: allow more minutes, or use a longer preset.
# - The result holds for this machine, this workload and this batch size. On another machine the ranking may be reversed.
# - With many optimizations, only some of the orders are measured; the interval includes the error from that.
#
# ## What to remember
#
# - "It gave 30%" has no meaning without *on top of what*.
# - A pair can be worth more together than apart: what removes a bottleneck makes room for what was hidden behind it.
#
# ## Exercise
#
# Multiply the Shapley values of `worth.found.effects`. What does the product equal?

# %% tags=["exercise"]
answer = None  # a number

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    whole = worth.found.together
    assert abs(answer / whole - 1) < 0.001, "Multiply the field shapley of every effect"
    print(f"Right: {answer:.2f}, the speed-up of all three together")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = 1.0
# for effect in worth.found.effects:
#     answer *= effect.shapley
# ```
#
# </details>

# %% [markdown]
# Next: [13 what if](13_what_if.ipynb)
