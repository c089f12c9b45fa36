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
# **How much together, and what is each worth?** *6 minutes. Needs: rungs that you kept in the chapters before; without them it takes a loader worker and threads that sleep.*
#
# The walk-through ended at 3,268 samples/s, from 400: 8.2 times. Your number is the recipe that you kept, against the plain loop, measured afresh. It must be measured afresh: a rung that was kept because it looked fast may have been lucky.

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

panel = pk.RecipePanel({"plain loop": {}, "everything kept": pk.kept()})
panel

# %%
panel.run()

# %% [markdown]
# Look at the row *(again)*: it is the plain loop once more, in another process. How far it is from 1 is what two equal processes differ by. A gain must be clearly larger. *Disturbed* means that other programs used the cores: close them and run again.
#
# **What to expect.** On two cores 1.3 to 2 times, with bf16 instructions 3. With a GPU, more: the simulated V100 ends near the walk-through's rate.
#
# This is your script, without perfkit. It gives the same losses:

# %%
pk.training_loop(panel.runs[1:])

# %% [markdown]
# ## Let it climb by itself
#
# `LadderPanel` tries every rung on top of what it has kept so far, drops what is not faster, and measures the result against the plain loop at the end. *Run* takes about six minutes at the preset `quick`; in a terminal it is `perfkit run`. This is the walk-through's ladder on a simulated V100:

# %%
ladder = pk.LadderPanel()
ladder

# %%
simulated = pk.recording("sim-v100")
simulated.plot("throughput")

# %%
simulated.table("The ladder")

# %% [markdown]
# Set it beside the published figures:

# %%
from perfkit.ladder.catalogue import LADDER, optimization

rungs = [optimization(name) for name in LADDER]
Markdown("\n".join(f"- {rung.title}: {rung.published}" for rung in rungs if rung.published))

# %% [markdown]
# ## The order is arbitrary
#
# The walk-through says so itself. A rung is credited with what it adds to those below: workers gain little on a loop that does not wait, and compiling gains little while it does. To ask for another order, or for what each is worth whatever the order:
#
# ```python
# pk.LadderPanel(["compile", "data_loading"]).run()
# pk.attribute(["data_loading", "channels_last", "compile"], minutes=4)  # each alone, all, all but each
# pk.tune(minutes=10)  # search: workers, batch, precision, under a memory cap
# ```
#
# Off the ladder, but switches all the same: `device_prefetch`, `accumulation`, `cpu_threads`, `fused_optimizer`, `cudnn_benchmark`, `max_autotune`, `amp_fp16`. Each is `pk.StagePanel("NAME")`.
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
# **In a ladder, rung C gained most. Is C the best optimization?**
#
# <details><summary>Yes, the numbers say so</summary>
#
# **No.** They say what C added after A and B. Before them, the bottleneck was another one.
#
# </details>
#
# <details><summary>It is the best at this place of this ladder, here</summary>
#
# **Right.** In another order C may gain little.
#
# </details>

# %% [markdown]
# **The verdict is *no measurable difference*. What does that mean?**
#
# <details><summary>The rung has no effect</summary>
#
# **No.** A small effect may hide in the noise.
#
# </details>
#
# <details><summary>An effect, if there is one, is smaller than this measurement can show</summary>
#
# **Right.** The text says how large one would have shown. Drop the rung: do not add complexity for it.
#
# </details>

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
# ## Keep in mind
#
# - Small gains multiply. So do small mistakes: measure the final recipe against the plain loop once more.
# - After each change, look again: the bottleneck has moved.
#
# Ready for more? The [capstone](puzzles/capstone.ipynb) is a slow script with ten faults. Next: [09 your own script](09_your_own_script.ipynb)
