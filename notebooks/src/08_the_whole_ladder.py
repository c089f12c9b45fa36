# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 · The whole ladder
#
# **How much do your changes gain together, and how much does each add?** *5 minutes. Needs: what you kept so far; if you kept nothing, it uses one worker and sleeping threads.*
#
# *After this you can state what your changes gained together, with an interval, and say why there is no right order.*
#
# You have two results: the *recipe* that you kept with the buttons, and `my_train.py`. Compare both with the plain loop. First the recipe, with the memory reuse of [04](04_batch_size.ipynb):

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

panel = pk.RecipePanel({"plain loop": {}, "everything kept": pk.kept() | {"allocator": "keep"}})
panel

# %%
panel.run()

# %% [markdown]
# The row *(again)* is the plain loop once more, so it gets no verdict: its distance from 1 is noise. If its interval misses 1, run again, and until then believe only gains that are several times as large.
#
# Expect 1.5 to 3 times on two cores (the most with 16-bit units), and more on a GPU.
#
# Now your own file, against the one that chapter 00 wrote. Guess: will the total equal the product of your gains? The last bar measures all edits at once. (This output is older than 02 to 07: gains differ.)

# %%
pk.my_train(whole=True, allow=["samples", "updates", "losses"])

# %% [markdown]
# - *Not the product?* The product has an interval too. If both overlap, as here, nothing shows that gains fail to multiply. But gains kept *because* they came out well tend to shrink when measured again.
# - *Not the recipe's ratio?* The recipe contains what panels decided, your file what *it* gained from (in the recording, uint8 batches, too). The rest is drift from one minute to the next.
#
# This is the recipe's script, with the same losses. `perfkit.workloads.files.photo_folder(256)` gives the path of its photos:

# %%
pk.training_loop(panel.runs[1:])

# %% [markdown]
# ## Let it climb by itself
#
# `LadderPanel` tries every stage, drops those that are not faster, and compares the result with the plain loop, in about six minutes (in a terminal: `perfkit run`). The walk-through's ladder on a simulated V100:

# %%
ladder = pk.LadderPanel()
ladder

# %%
simulated = pk.recording("sim-v100")
simulated.plot("throughput")

# %%
simulated.table("The ladder")

# %% [markdown]
# The published rates differ from it by up to 11%, except after *batch size* and *uint8 copy*, which it puts a fifth too low:

# %%
from perfkit.ladder.catalogue import LADDER, optimization

rungs = [optimization(name) for name in LADDER]
Markdown("\n".join(f"- {rung.title}: {rung.published}" for rung in rungs if rung.published))

# %% [markdown]
# ## The order is arbitrary
#
# A stage gets the credit for what it adds to those before it: workers do nothing for a loop that never waits for data; compiling does little for one that does. To try another order, or to search:
#
# ```python
# pk.LadderPanel(["compile", "data_loading"]).run()
# pk.tune(minutes=10)  # search: workers, precision, compiling, within the memory
# ```
#
# ## What is it worth?
#
# At the walk-through's rates, 90 epochs of ImageNet (if loading kept up; with JPEG files on 8 vCPUs it would not):

# %%
samples, price = 1_281_167 * 90, 3.0  # images × epochs; the price of an hour, in any currency
for name, rate in (("before", 400), ("after", 3268)):
    hours = samples / rate / 3600
    print(f"{name:7} {rate:6,} samples/s  {hours:5.1f} h  costs {hours * price:6.2f}")

# %% [markdown]
# ## Drills

# %%
pk.drill(7)

# %%
pk.drill(8)

# %%
pk.drills()

# %% [markdown]
# ### Puzzle ★★: find the three faults
#
# *About 20 minutes.*

# %%
pk.puzzle("three_faults")


# %%
def train(model, optimizer, make_loader, epochs):
    history = []
    for epoch in range(epochs):
        total, count = 0.0, 0
        for inputs, targets in make_loader():
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                right = (model(inputs).argmax(1) == targets).float().mean()
            total += loss.item()
            count += 1
        history.append(total / count)
    return history


pk.puzzle("three_faults").check(train)

# %% [markdown]
# ## Check yourself
#
# **On a ladder, stage C gained most. Is C the best optimization?**
#
# <details><summary>Answer</summary>
#
# It was the best after A and B. Before them, the bottleneck was a different one, and C might have gained little.
#
# </details>
#
# **The verdict is *no measurable difference*. What does that mean?**
#
# <details><summary>Answer</summary>
#
# If there is a difference, it is at most as large as the verdict says. Drop the change.
#
# </details>
#
# **Can you trust a gain of 2%?**
#
# <details><summary>Answer</summary>
#
# Only if its interval excludes 1, and that of *(again)* is within 2% of 1.
#
# </details>
#
# The [capstone](puzzles/capstone.ipynb) is a slow script with ten faults. Next: [09 your own script](09_your_own_script.ipynb)
