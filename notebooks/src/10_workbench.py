# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 · Workbench
#
# **What do *you* want to try?** *10 minutes. Needs: nothing special.*
#
# ![A panel: a question, a guess, Run, and the steps before and after with the verdict](../docs/images/panel.png)
#
# Every switch has a control here, as in this panel of a stage. Set some and press **Run**: your recipe is measured alternately with the plain loop. **Profile** shows its timeline. The **history** lists every run of this workload on this computer; tick two to compare them. For ticked runs, **Use** sets the controls, and **Export** gives the script and the runs as a file.
#
# Try to answer one of these. Do two workers beat one? Does compiling gain more after `channels_last`? What does `cpu_threads` do next to a worker?

# %%
from perfkit import notebook as pk

bench = pk.Workbench()
bench

# %% [markdown]
# From a cell: `bench.set(workers=1)`, then `bench.run()`. To compare your own recipes, put the recipe that you compare against at the top: every ratio, with its interval, is relative to it.
#
# ## Do gains multiply?
#
# One worker loads. *Cheaper samples* shorten its work, *shorter kernels* the model's. Say that the former gain 1.1 times, and the latter 1.5. *Guess what both gain: 1.1 · 1.5, which is 1.65, or less, or more?*

# %%
import math

import torch

worker = {"workers": 1, "wait_policy": "passive"}
cheaper = {"uint8_copy": True, "scaled_decode": True}
shorter = {"amp": "bf16", "cpu_threads": max(1, torch.get_num_threads() - 1), "channels_last": True}
answer = pk.RecipePanel(
    {
        "one worker": worker,
        "cheaper samples": worker | cheaper,
        "shorter kernels": worker | shorter,
        "both": worker | cheaper | shorter,
    }
)
answer.run()

# %%
gains = {run.title: run.speedup("baseline") for run in answer.runs}
first, second, both = (gains.get(title) for title in ("cheaper samples", "shorter kernels", "both"))
if first and second and both:
    product = first.ratio * second.ratio
    halves = [math.log(gain.high / gain.low) / 2 for gain in (first, second)]  # in logarithms, gains add
    factor = math.exp(math.hypot(*halves))
    print(f"product: {first.ratio:.2f} × {second.ratio:.2f}", end=" = ")
    print(f"{product:.2f} ({product / factor:.2f} to {product * factor:.2f})")
    print(f"measured together: {both.ratio:.2f} ({both.low:.2f} to {both.high:.2f})")

# %% [markdown]
# With 16-bit units, often *more*, as above. (The product has an interval as well, and the two overlap, so this run alone does not prove it. Look at *waits for data*, too: with shorter kernels alone the loop waits, with both it hardly does.) Alone, cheaper samples shorten work that nobody waits for; they gain a little, because the worker leaves the model more of the cores. Shorter kernels alone make the loop wait for its worker, and lose part of their gain. Together, each removes the other's limit. The other way round: two changes that remove the *same* wait gain less than their product. So a change that did nothing deserves a second try after the bottleneck has moved.
#
# ## Your turn
#
# Change the recipes above to answer one of the three questions at the top, and guess before you run it.
#
# <details><summary>What to expect for all three</summary>
#
# On two cores a second worker adds little or nothing, or even slows the loop down: the first one already ended the wait, and both share the model's cores. If the interval contains 1, the difference is at most what its farther end says; *Continue* narrows it. Compiling gains *less* after `channels_last`, because the compiler chooses the layout of convolutions itself ([07](07_compile.ipynb)). On two cores, with one compute thread and a core for the worker, the loop is 0.95 to 1.2 times as fast as with two sleeping threads ([measured](../docs/measuring.md)), and more in 16 bits ([06](06_amp.ipynb)).
#
# </details>
#
# Three switches have no chapter, because they rarely matter: `zero_grad_set_to_none`, `fp32_precision` and `optimizer_impl`. Measure them here, or with `perfkit compare baseline optimizer_impl=fused`.
#
# Next: [11 hidden transfers](11_hidden_transfers.ipynb)
