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
# **How much together, and what is each worth?** *6 minutes. Needs: what you kept so far; if you kept nothing, it uses one worker and sleeping threads.*
#
# *After this you can state what your changes gained together, with an interval, and say why no order of them is the right one.*
#
# The walk-through ended at 3,268 samples/s, from 400: 8.2 times as fast. Your number is the recipe that you kept, compared with the plain loop in new processes. It must be measured again, because a stage that was kept for looking fast may just have been lucky.

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

panel = pk.RecipePanel({"plain loop": {}, "everything kept": pk.kept()})
panel

# %%
panel.run()

# %% [markdown]
# The row *(again)* is the plain loop once more, in another process. Its distance from 1.00× is the noise between two identical runs, and a gain must be clearly larger. *Disturbed* means that other programs used the cores: close them and run again.
#
# **What to expect.** On two cores 1.3 to 2 times as fast, with bf16 instructions 3 times; more with a GPU.
#
# Now your own file, against the one that chapter 00 wrote:

# %%
pk.my_train(whole=True)

# %% [markdown]
# This is the script of the recipe, without perfkit. It gives the same losses:

# %%
pk.training_loop(panel.runs[1:])

# %% [markdown]
# ## Let it climb by itself
#
# `LadderPanel` tries every stage on top of what it has kept so far, drops those that are not faster, and compares the result with the plain loop at the end. *Run* takes about six minutes at the preset `quick`; in a terminal it is `perfkit run`. This is the walk-through's ladder on a simulated V100:

# %%
ladder = pk.LadderPanel()
ladder

# %%
simulated = pk.recording("sim-v100")
simulated.plot("throughput")

# %%
simulated.table("The ladder")

# %% [markdown]
# Compare it with the published figures:

# %%
from perfkit.ladder.catalogue import LADDER, optimization

rungs = [optimization(name) for name in LADDER]
Markdown("\n".join(f"- {rung.title}: {rung.published}" for rung in rungs if rung.published))

# %% [markdown]
# ## The order is arbitrary
#
# The walk-through says so itself. A stage gets the credit for what it adds to those before it: workers don't help a loop that isn't waiting for data, and compiling doesn't help one that is. To try another order, or to search for the fastest recipe:
#
# ```python
# pk.LadderPanel(["compile", "data_loading"]).run()
# pk.tune(minutes=10)  # search: workers, batch, precision, within the memory
# ```
#
# ## What is it worth?
#
# A device costs the same while it waits. At the walk-through's rates, 90 epochs of ImageNet:

# %%
samples, price = 1_281_167 * 90, 3.0  # images × epochs; the price of an hour, in any currency
for name, rate in (("before", 400), ("after", 3268)):
    hours = samples / rate / 3600
    print(f"{name:7} {rate:6,} samples/s  {hours:5.1f} h  costs {hours * price:6.2f}")

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
# It is the best at this place of this ladder. The figure says what C added after A and B. Before them, the bottleneck was a different one, and C might have gained little.
#
# </details>
#
# **The verdict is *no measurable difference*. What does that mean?**
#
# <details><summary>Answer</summary>
#
# An effect, if there is one, is smaller than this measurement can show; the text says how large one would have shown. Drop the change, because it adds complexity for nothing.
#
# </details>
#
# **Can you trust a gain of 2%?**
#
# <details><summary>Answer</summary>
#
# Only if the row *(again)* is much closer to 1.00× than that.
#
# </details>
#
# Ready for more? The [capstone](puzzles/capstone.ipynb) is a slow script with ten faults. Next: [09 your own script](09_your_own_script.ipynb)
