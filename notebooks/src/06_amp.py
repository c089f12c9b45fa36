# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 06 · Automatic mixed precision
#
# *About 3 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: to be faster, a GPU with Tensor Cores or a CPU with AMX; AVX512-BF16 alone does not always suffice.*
#
# Autocast (`amp`) runs matrix products and convolutions in 16 bits, in which matrix units are several times faster. `bf16` has the range of float32. `fp16` does not, so the loss is scaled up to keep small gradients from becoming zero (`GradScaler`). `channels_last` stores tensors in the layout that these units read. TF32 lets float32 use the same units, with a 10-bit mantissa: PyTorch does so for convolutions by default, and the stage `tf32`, two stages before this one, also for matrix products (`fp32_precision`).

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("amp")
panel

# %%
panel.question()

# %% [markdown]
# ## What changes in the script
#
# A diff of two scripts, both exported from the program that is measured: as on this machine and, where that differs, as on a GPU.

# %%
panel.diff()

# %% [markdown]
# ## Predict before you run
#
# What speed-up do you expect? 1 means no change, below 1 means slower. Enter *your* number.

# %%
panel.predict(2)

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
# Losses agree within a tolerance, not bit for bit, because values are rounded to 16 bits. Accumulation inside a matrix product, reductions, the statistics of norm layers and the loss stay in float32; element-wise sums of 16-bit tensors, such as residual connections, do not. (The preset `paper` also raises the batch size in this stage, as the article did, so its gain has two causes.) The evidence that 16 bits are used:

# %%
panel.proof()

# %% [markdown]
# ## fp16 and its scaler
#
# What fp16 would change on top of the ladder, on a machine that can run it:

# %%
pk.StagePanel("amp_fp16").diff()

# %% [markdown]
# ## The same on a simulated V100
#
# A V100 has Tensor Cores, but no bfloat16: AMP is fp16 with a gradient scaler there. As in the article, the batch is larger in this stage, so that the gain has two causes. This is the article's machine, as a recorded simulation (nothing is measured: see [00](00_start_here.ipynb)):

# %%
simulated = pk.StagePanel("amp", device="recorded:sim-v100")
simulated.run()
simulated.table()

# %%
simulated.verdict()

# %% [markdown]
# ## When it does not help
#
# - If the step waits for data, it waits as long as before.
# - Without 16-bit matrix units, the casts only cost time.
# - Small layers, and layers with odd sizes, do not fill matrix units: sizes that are multiples of 8 do better.
#
# ## Exercise
#
# The ladder switched on `channels_last` one stage before AMP. How much of AMP's gain depends on it? Run the recipe with AMP, but without `channels_last`.

# %% tags=["exercise"]
trial = None  # pk.LadderPanel(["baseline"], settings=...), then trial.run()

# %% tags=["check"]
if trial is None:
    print("Your turn: replace None in the cell above.")
else:
    ours, yours = panel.runs[1], trial.runs[-1]
    assert yours.status == "ok", f"It was not measured: {yours.reason}"
    assert not yours.recipe["channels_last"], "Switch channels_last off"
    changed = {name for name, value in yours.recipe.items() if value != ours.recipe[name]}
    assert changed <= {"channels_last"}, f"Leave the rest as it was: {', '.join(sorted(changed))}"
    for name, run in (("with channels_last", ours), ("without", yours)):
        rate = run.samples_per_s
        loss = f", first loss {run.losses[0]:.3f}" if run.losses else ""
        print(f"{name}: {rate.value:.0f} samples/s ({rate.low:.0f} to {rate.high:.0f}){loss}")
    print("Right. These two runs were not interleaved: if their intervals overlap, call it no difference.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# trial = pk.LadderPanel(["baseline"], settings=panel.runs[1].recipe | {"channels_last": False})
# trial.run()
# ```
#
# The first losses are nearly the same, because the initial weights and the data are the same. Optimizations depend on each other, so a stage's gain depends on the stages before it.
#
# </details>

# %% [markdown]
# Next: [07 compile](07_compile.ipynb)
