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
# *About 1 to 3 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: to be faster, a GPU with Tensor Cores or a CPU with AMX; AVX512-BF16 alone does not always suffice.*
#
# Autocast (`amp`) runs matrix products and convolutions in 16 bits, in which matrix units are several times faster. `bf16` has the range of float32. `fp16` does not, so the loss is scaled up to keep small gradients from becoming zero (`GradScaler`). `channels_last` stores tensors in the layout that these units read. TF32 lets float32 use the same units, with a 10-bit mantissa: PyTorch does so for convolutions by default, and the stage `tf32`, two stages before this one, also for matrix products (`fp32_precision`).
#
# A small transformer trains here (`tiny_gpt`), most of whose step is matrix products. It shows what *this* processor can do with 16 bits: on a GPU with Tensor Cores, or a CPU with AMX or AVX512-BF16, it is faster. A CPU without such instructions has to convert every number, and is slower.

# %%
import torch
from torch import nn

from perfkit import notebook as pk

name = "tiny_gpt"
panel = pk.StagePanel("amp", workload=name)

# %% [markdown]
# The card of this optimization, in parts that open on a click:

# %%
panel.card()

# %% [markdown]
# ## What changes in the script
#
# A diff of two scripts, both exported from the program that is measured: as on this machine and, where that differs, as on a GPU.

# %%
panel.diff()

# %% [markdown]
# ## Predict before you run
#
# What speed-up do you expect? 1 means no change, below 1 means slower. Enter *your* number under *Guess*; the panel sets it beside the result and the article's figure. (In code: `panel.predict(1.5)`.)

# %%
panel

# %% [markdown]
# ## Run
#
# Press *Run* in the panel, or run the next cell: the result appears below the one that you used.

# %%
panel.run()

# %% [markdown]
# ## Did it help *here*, and why?
#
# Losses agree within a tolerance, not bit for bit, because values are rounded to 16 bits. Accumulation inside a matrix product, reductions, the statistics of norm layers and the loss stay in float32; element-wise sums of 16-bit tensors, such as residual connections, do not. (The preset `paper` also raises the batch size in this stage, as the article did, so its gain has two causes.) The proof in the panel shows whether 16 bits are used.

# %%
panel.plot("losses")

# %% [markdown]
# A whole model gains less: only its products run in 16 bits, and only wide ones are worth the casts. Try a transformer (`pk.StagePanel("amp", workload="tiny_gpt")`) or convolutions (`workload="photos"`).
#
# ## fp16 and its scaler
#
# float16 has no room for numbers below about 6·10⁻⁸: they become zero. The gradients of a loss that is small, or averaged over many samples, are such numbers. Here one linear layer learns small targets three times, with the same weights and data:

# %%
random = torch.Generator().manual_seed(0)
inputs = torch.randn(1024, 16, generator=random)
targets = inputs @ (1e-7 * torch.randn(16, 1, generator=random))


def learn(amp, scaled):
    """The share of the first gradients that are 0, and of the loss that is left after some steps."""
    layer = nn.Linear(16, 1, bias=False)
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-8, eps=1e-12)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for step in range(40):
        with torch.autocast("cpu", torch.float16, enabled=amp):
            loss = (layer(inputs).float() - targets).square().mean()
        scaler.scale(loss).backward()
        if step == 0:
            first, zeros = loss.item(), (layer.weight.grad == 0).float().mean().item()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return zeros, loss.item() / first


for title, amp, scaled in (
    ("float32", False, False),
    ("fp16 without a scaler", True, False),
    ("fp16 with a scaler", True, True),
):
    zeros, left = learn(amp, scaled)
    print(f"{title}: {zeros:.0%} of the first gradients are 0, {left:.1%} of the loss is left")

# %% [markdown]
# `GradScaler` multiplies the loss, and with it every gradient, by a large number, and divides the gradients by it before the optimizer uses them. When one overflows, it skips the step and takes a smaller number. bf16 has the range of float32 and needs none of this.
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

# %% [markdown]
# ## When it does not help
#
# - If the step waits for data, it waits as long as before.
# - Without 16-bit matrix units, the casts only cost time.
# - Small layers, and layers with odd sizes, do not fill matrix units: sizes that are multiples of 8 do better.
#
# ## What to remember
#
# - 16 bits are faster where a processor has units for them and the products are wide enough to fill these units. Measure it; do not assume it.
# - bf16 needs no scaler. fp16 does: without one, small gradients become zero and no error tells you so.
# - Losses agree within a tolerance. Compare them over more than a few steps before you trust a new data type.
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. fp16 training without a gradient scaler. What goes wrong first?**
#
# <details><summary>It does not run</summary>
#
# **No.** It runs, and some weights silently do not learn.
#
# </details>
#
# <details><summary>Small gradients become zero</summary>
#
# **Right.** fp16 has no numbers between 0 and about 6e-8. The scaler multiplies the loss, so that gradients stay above that, and divides before the optimizer.
#
# </details>
#
# <details><summary>The weights are stored with too few digits</summary>
#
# **No.** With autocast the weights stay in float32.
#
# </details>
#
# **2. Why does bf16 need no scaler?**
#
# <details><summary>PyTorch scales it automatically</summary>
#
# **No.** Nothing is scaled: it is not necessary.
#
# </details>
#
# <details><summary>It is more precise than fp16</summary>
#
# **No.** It is less precise: 8 significant bits in place of 11.
#
# </details>
#
# <details><summary>It has the range of float32</summary>
#
# **Right.** It has as many bits for the exponent as float32, and fewer for the digits.
#
# </details>
#
# **3. The article switched AMP on and doubled the batch size; the rate rose by half. How much of that is AMP?**
#
# <details><summary>Half of it</summary>
#
# **No.** Effects need not be equal, and they can overlap.
#
# </details>
#
# <details><summary>All of it</summary>
#
# **No.** Chapter 04 shows that the batch size changes the rate, too.
#
# </details>
#
# <details><summary>One cannot say</summary>
#
# **Right.** Two changes were made at once. To separate them, measure each alone and both together (chapter 12).
#
# </details>

# %% [markdown]
# ## Exercise
#
# How wide must a product be? Measure AMP on the same workload with a width of at most a quarter (`options={"width": …, "heads": 2}`).

# %% tags=["exercise"]
trial = None  # pk.LadderPanel(["amp"], workload=name, options=...), then trial.run()

# %% tags=["check"]
if trial is None:
    print("Your turn: replace None in the cell above.")
else:
    wide = panel.runs[1]
    narrow = next((run for run in trial.runs if run.stage == "amp"), None)
    assert narrow, "Measure the stage amp"
    assert narrow.workload == wide.workload, "Measure it on the same workload"
    assert narrow.status == "ok", f"It was not measured: {narrow.reason}"
    assert 4 * narrow.options["width"] <= wide.options["width"], "Choose a width of at most a quarter"
    for run in (wide, narrow):
        change = run.speedup("previous")
        print(f"width {run.options['width']:,}: {change.ratio:.2f}× ({change.verdict})")
    print("Right. The smaller the product, the more of the step is casts and overhead.")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# trial = pk.LadderPanel(["amp"], workload=name, options={"width": 8, "heads": 2})
# trial.run()
# ```
#
# A product does `n` times as many operations as the numbers it casts. So narrow products pay for the casts without getting anything for them.
#
# </details>

# %% [markdown]
# Next: [07 compile](07_compile.ipynb)
