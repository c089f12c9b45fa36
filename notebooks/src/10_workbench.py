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
# From a cell: `bench.set(workers=1)`, then `bench.run()`. To compare your own recipes, name what you compare *with* first: every ratio, with its interval, is to that one. For the first question, that is one worker, not the plain loop. Guess:

# %%
passive = {"wait_policy": "passive"}
answer = pk.RecipePanel({"one worker": {"workers": 1} | passive, "two workers": {"workers": 2} | passive})
answer.run()

# %% [markdown]
# <details><summary>What to expect for all three</summary>
#
# On two cores a second worker adds little or nothing, or slows the loop: the first one already ended the wait, and both share the model's cores. If the interval holds 1, the answer is "not by more than its width"; *Continue* narrows it. Compiling gains *less* after `channels_last`, because the compiler chooses the layout of convolutions itself ([07](07_compile.ipynb)). On two cores, with one compute thread and a core for the worker, the loop is 1.0 to 1.2 times as fast as with two sleeping threads ([measured](../docs/measuring.md)), and more in 16 bits ([06](06_amp.ipynb)).
#
# </details>
#
# Three switches have no chapter, because they rarely matter: `zero_grad_set_to_none`, `fp32_precision` and `optimizer_impl`. Measure them here, or with `perfkit compare baseline optimizer_impl=fused`.
#
# Next: [11 hidden transfers](11_hidden_transfers.ipynb)
