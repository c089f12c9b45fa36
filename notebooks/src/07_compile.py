# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 · torch.compile
#
# **What do fused kernels and less Python give?**
#
# *About 3 minutes at the preset `quick` on two cores. Needs: a C++ compiler (CPU) or Triton (GPU).*
#
# `compile` traces the model into a graph and generates fused kernels; `compile_mode` says how long it may search. `optimizer_impl` chooses how the optimizer walks the parameters (`fused` in one kernel), and `cudnn_benchmark` lets cuDNN time its convolution algorithms: other ways to the same end.

# %%
from perfkit.notebook import StagePanel

panel = StagePanel("compile")
panel.question()

# %% [markdown]
# ## What changes in the script
#
# The two scripts below are real: `perfkit export` writes them, and the harness runs the same program.

# %%
panel.diff()

# %% [markdown]
# ## Predict before you run
#
# How many times as fast will the training be? Below 1 is slower, 1 is no change. Put *your* number in.

# %%
panel.predict(1.2)

# %% [markdown]
# ## Run

# %%
panel.run()

# %%
panel.table()

# %%
panel.plot("throughput")

# %%
panel.plot("step_time")

# %%
panel.plot("memory")

# %% [markdown]
# ## Did it help *here*, and why?

# %%
panel.verdict()

# %%
panel.score()

# %% [markdown]
# Compile time is paid once and shown apart: it is never averaged into the steps.
#
# The evidence that each switch really acts, taken from the objects that were built:

# %%
panel.proof()

# %% [markdown]
# ## When it does not help
#
# Convolutions and large matrix products are library calls, compiled or not; a short training never earns the compile time back. Changing shapes compile again.

# %% [markdown]
# ## Exercise
#
# After how many steps has compiling paid for itself here?

# %%
before, after = panel.runs[0], panel.runs[-1]
if after.status == "ok":
    saved_s = before.step_s.median - after.step_s.median
    steps = after.compile_s / saved_s if saved_s > 0 else None
    assert after.compile_s > 0, "The first step compiles"
    print(f"after about {steps:,.0f} steps" if steps else "never: a compiled step is not shorter here")
else:
    print(after.reason)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Compile time divided by what a step saves. If a step saves nothing, there is no such number, and that is the result.
#
# </details>

# %% [markdown]
# Next: [08 the whole ladder](08_the_whole_ladder.ipynb)
