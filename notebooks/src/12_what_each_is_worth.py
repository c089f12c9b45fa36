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
# **How much of the gain is whose, whatever the order?**
#
# *About 3 minutes at the preset `quick` on two cores. Needs: nothing special.*
#
# A ladder gives each stage what it adds to the stages below it, so its answer depends on the order, and the order is arbitrary: faster computing shows little while the step waits for data, and much once it does not. Here every set of three optimizations is measured, each in turn with the baseline. For each optimization that gives its worth *alone*, *on top of all the others*, and its mean over all orders: the Shapley value, in which the parts multiply up to the whole.

# %%
from perfkit import notebook as pk

names = ["data_loading", "channels_last", "amp"]

# %% [markdown]
# ## Predict before you run
#
# Which one is worth most on average? And is it worth more alone, or once the others are on?

# %%
my_guess = "data_loading"

# %% [markdown]
# ## Run
#
# Runs are kept in the store: a cell that was stopped, or whose minutes are spent, goes on from there when it is run again.

# %%
worth = pk.attribute(names, minutes=4, workload="photos")
worth.table()

# %%
worth.plot()

# %%
worth.words()

# %% [markdown]
# Two that help each other give together more than the product of each alone (above 1); two that do the same work twice give less.

# %%
worth.interactions()

# %%
best = max(worth.found.effects, key=lambda effect: effect.shapley or 0)
print(f"You guessed {my_guess}; on average {best.name} is worth most here.")

# %% [markdown]
# ## When the answer misleads
#
# - Intervals that overlap do not order two optimizations: give it more minutes, or a longer preset.
# - It is the worth on this machine, for this workload and this batch. On another one the order may turn round.
# - With many optimizations only some orders are measured; the interval holds that error too.
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
    whole = worth.found.whole
    assert abs(answer / whole - 1) < 0.01, "Multiply the field shapley of every effect"
    print(f"Right: {answer:.2f}, which is all of them together over the baseline")

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
