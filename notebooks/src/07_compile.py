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
# *About 3 minutes at the preset `quick` on two cores, most of it compiling. Needs: a C++ compiler (CPU) or Triton (GPU).*
#
# `compile` traces the model into a graph and generates fused kernels for it: fewer trips to memory, fewer launches, less Python. `compile_mode` says how long it may search.

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

panel = pk.StagePanel("compile")
panel

# %%
panel.question()

# %% [markdown]
# ## What changes in the script
#
# This is the difference of two real scripts: what is measured is the same program.

# %%
panel.diff()

# %% [markdown]
# ## Predict before you run
#
# How many times as fast will the training be? 1 is no change, below 1 is slower. Put *your* number in.

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

# %%
panel.plot("losses")

# %% [markdown]
# ## Did it help *here*, and why?

# %%
panel.verdict()

# %%
panel.score()

# %% [markdown]
# What proves that the model is compiled:

# %%
panel.proof()

# %% [markdown]
# Compiling happens once, in the first step. It is shown apart and never averaged into the steps:

# %%
before, after = panel.runs[0], panel.runs[-1]
Markdown(
    f"Compiling took {after.compile_s:.1f} s; a step takes {before.step_s.median * 1e3:.1f} ms before "
    f"and {after.step_s.median * 1e3:.1f} ms after."
    if after.status == "ok"
    else f"Not measured here: {after.reason}"
)

# %% [markdown]
# ## Other ways to the same end
#
# Many small kernels cost launches, with or without a compiler. `optimizer_impl` chooses how the optimizer walks the parameters (`fused`: in one kernel), and `cudnn_benchmark` lets cuDNN time its convolution algorithms and keep the best:

# %%
pk.StagePanel("fused_optimizer").diff()

# %% [markdown]
# ## When it does not help
#
# - Convolutions and large matrix products are library calls, compiled or not; what fuses is the work between them.
# - A step that waits for data waits as long as before.
# - A short training never earns the compile time back, and every new shape compiles again.
#
# ## Exercise
#
# After how many steps has compiling paid for itself here? If a step saves nothing, the answer is `float("inf")`.

# %% tags=["exercise"]
answer = None  # a number of steps, computed from before and after

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    saved_s = before.step_s.median - (after.step_s or before.step_s).median
    pays = saved_s > 0
    assert pays or answer == float("inf"), "A step is not shorter here: compiling never pays"
    assert not pays or abs(answer * saved_s - after.compile_s) < 0.05 * after.compile_s, (
        "Steps × saving = price"
    )
    print(f"Right: after about {answer:,.0f} steps" if pays else "Right: never, and that is the result")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# saved_s = before.step_s.median - after.step_s.median if after.status == "ok" else 0
# answer = after.compile_s / saved_s if saved_s > 0 else float("inf")
# ```
#
# The price divided by what one step saves. Compare it with the steps of your own trainings.
#
# </details>

# %% [markdown]
# Next: [08 the whole ladder](08_the_whole_ladder.ipynb)
