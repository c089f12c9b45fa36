# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 15 · Kernels, shapes and fusion
#
# **What can this device do, and how much of that does your training use?**
#
# *About 6 to 8 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 12 (planned, not timed). Needs: nothing special; Tensor Cores make the differences large.*
#
# A device has two limits, or *roofs*: floating-point operations per second, and bytes per second. Which one limits an operation depends on its *FLOPs per byte*: a large matrix product has many, adding two tensors has almost none. How close a matrix product comes to the roof depends on its shape: matrix units work on tiles, and if a size is not a multiple of the tile size, part of the last tile stays empty.

# %%
from perfkit import notebook as pk

name = "perfkit.workloads.bottlenecks:DeviceBound"
kernels = pk.kernels(name)
kernels.table("Roofs")

# %% [markdown]
# These roofs have just been measured, with large matrix products and a large copy. A data sheet promises more. `DeviceBound` consists of convolutions; with `name = "tiny_gpt"` this chapter looks at a transformer, whose products are narrower.
#
# ## Shapes
#
# The article's product is [16 · 36, 1504] × [1504, 10000] (on a CPU, M and N are a quarter of that). On a V100 the article measured 1.340 ms in fp32 and 0.267 ms in fp16, a speed-up of 5.02×. With K = 1500 or N = 9999, which are not multiples of 8, nearly all of the article's fp16 speed-up was lost (1.05× and 1.01×). The article's fourth row, with 16 · 35, says nothing about M, because 16 · 35 is a multiple of 8 as well ([chapter 19](19_checking_the_articles.ipynb)). The sweep below has an odd M. Since cuBLAS 11, Tensor Cores accept any size, but multiples of 8 are still faster. NVIDIA's rule for M, N and K, as the slides quote it:
#
# | type | before cuBLAS 11 (cuDNN 7.6.3) | since; most efficient with multiples of | on an A100 |
# |---|---|---|---|
# | INT8 | multiples of 16 | 16 | 128 |
# | FP16 (and BF16) | multiples of 8 | 8 | 64 |
# | TF32 | – | 4 | 32 |
# | FP64 | – | 2 | 16 |
#
# The multiples are always 16 bytes, and 128 bytes on an A100: what is read from memory at a time. For images, the rule concerns the numbers of channels, together with the layout NHWC (`channels_last`); for language models, vocabulary, hidden sizes, and tokens per batch.
#
# Predict: which of the neighbouring shapes below is slow *here*?

# %%
kernels.table("By shape")

# %%
kernels.plot("roofline")

# %% [markdown]
# Points far below their roof do not use the device well. A point left of the bend is limited by memory bandwidth: a faster kernel cannot help it, only *fusion*, which keeps values in registers between operators.
#
# ## Your step
#
# *MFU*, model FLOPs utilisation, is the FLOP/s of the whole step divided by the measured peak. The *speed of light* row also counts memory traffic. Each operator needs at least the longer of two times: its FLOPs at the peak, or its bytes at full bandwidth, since a kernel computes while it moves data. Their sum, divided by the step time, says how close the step comes to the roofs. It is a bound for a step without fusion only: bytes are counted as if none were fused and none came from a cache, so a fused step, or a small one, can exceed 100%.

# %%
kernels.table("A step of")

# %% [markdown]
# ## Sizes that do not fit
#
# Layers of this model whose sizes are not multiples of 8, and how many FLOPs padding would add. Only a measurement shows whether padding pays off. For example, the first layer of an image model has 3 channels, and libraries have special kernels for that case.

# %%
kernels.table("Layers")

# %% [markdown]
# ## Who chooses the kernel?
#
# For one operation there are often a dozen kernels, and none is the fastest for all sizes. By default a library chooses by rules of thumb, which costs nothing and is not always right. The alternative is to try: *observe* the first steps, *measure* the candidates for each shape, then *run* with the fastest. `cudnn_benchmark` does that for convolutions, `compile_mode="max-autotune"` for what the compiler generates. Both pay only if shapes repeat.
#
# ## Before and after
#
# Memory layout, fused optimizer, TF32, cuDNN's search and compilation change which kernels run. They are switches like the others: `channels_last`, `optimizer_impl`, `fp32_precision`, `cudnn_benchmark`, `compile`. A recipe whose switch has no effect on this machine is n/a, with the reason.

# %%
panel = pk.RecipePanel(
    {
        "plain": {},
        "channels_last": {"channels_last": True},
        "fused optimizer": {"optimizer_impl": "fused"},
        "loop optimizer": {"optimizer_impl": "loop"},
        "TF32": {"fp32_precision": "tf32"},
        "cuDNN search": {"cudnn_benchmark": True},
        "compiled": {"compile": True},
    },
    workload=name,
)
panel

# %%
panel.run()

# %% [markdown]
# ## Fusion, counted
#
# How many operators (on a GPU: kernels) does one step run, plain and compiled? Fewer means that several were fused into one.

# %%
counts = {}
for title, switches in (("plain", {}), ("compiled", {"compile": True})):
    if title in [
        run.title for run in panel.runs if run.status == "ok" and not run.facts.get("not applied: compile")
    ]:
        reading = pk.profile(name, settings=switches)
        rows = reading.analysis.kernels or reading.analysis.operators
        counts[title] = sum(row.calls for row in rows) / max(1, len(reading.analysis.steps))
for title, count in counts.items():
    print(f"{title}: {count:,.0f} per step")

# %% [markdown]
# The article's examples of fusion are add + relu, batch norm + relu, and batch norm + add + relu (together about 6% on ResNet-50), and weight decay inside the optimizer's kernel.
#
# ## When it does not help
#
# - If the step waits for data, faster kernels do not help: read chapter 02 first.
# - A matrix product that is limited by memory bandwidth gains nothing from better tiles.
# - Padding a layer changes the model; do it where the model is defined, not after training.
#
# A simulated GPU has no measured roofs: those of its data sheet are all that is known of it.
#
# ## What to remember
#
# - First find out which roof is near: operations or bytes. The remedies are different.
# - Sizes in multiples of 8 (64 on newer GPUs) are free when a model is designed, and expensive later.
# - Busy is not fast: compare with the roof, not with 100%.
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. A point lies left of the roofline's bend, close to the roof. What makes this operation faster?**
#
# <details><summary>Moving fewer bytes: fusion, or smaller types</summary>
#
# **Right.** It is limited by memory bandwidth, and uses nearly all of it.
#
# </details>
#
# <details><summary>Tensor Cores</summary>
#
# **No.** They raise the roof for computing, which is not the limit here.
#
# </details>
#
# <details><summary>A better kernel for the same operation</summary>
#
# **No.** It cannot move the same bytes faster than the memory allows.
#
# </details>
#
# **2. Since cuBLAS 11, Tensor Cores take matrices of any size. Do multiples of 8 still matter in fp16?**
#
# <details><summary>Yes: they are faster</summary>
#
# **Right.** The condition was dropped, the reason was not: tiles that are not full, and rows that are not aligned in memory.
#
# </details>
#
# <details><summary>No, any size is as fast</summary>
#
# **No.** Measure neighbouring shapes: the table above does.
#
# </details>
#
# <details><summary>Yes, otherwise it fails</summary>
#
# **No.** It works, only slower.
#
# </details>

# %% [markdown]
# ## Exercise
#
# Take the first layer in the table above. By what fraction do its FLOPs grow when it is padded?

# %% tags=["exercise"]
answer = None  # 0.25 for a quarter more

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    first = kernels.found.misaligned[0]
    growth = first.padded[0] * first.padded[1] / (first.sizes[0] * first.sizes[1]) - 1
    assert abs(answer - growth) < 0.01 * growth, "A layer's FLOPs are proportional to inputs × outputs"
    print(f"Right: layer {first.layer} would take {growth:.1%} more FLOPs")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# first = kernels.found.misaligned[0]
# answer = first.more_flops
# ```
#
# </details>

# %% [markdown]
# Next: [16 NVTX and Nsight](16_nvtx_and_nsight.ipynb)
