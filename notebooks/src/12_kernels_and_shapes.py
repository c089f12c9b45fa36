# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12 · Kernels and shapes
#
# **How far is it to the device's limits?** *20 minutes. Needs: nothing special; Tensor Cores make the differences large.*
#
# A device has two limits, or *roofs*: operations per second, and bytes per second. *FLOPs per byte* decides which one an operation meets first. A large matrix product has many; adding two tensors has almost none.

# %%
from perfkit import notebook as pk

kernels = pk.kernels("cifar_resnet18")
kernels.table("Roofs")

# %% [markdown]
# Operations per second divided by bytes per second: so many FLOPs per byte is where the roofs meet.
#
# - **Fewer FLOPs per byte**: memory is the limit. Move fewer bytes: fusion, smaller types.
# - **More**: arithmetic is the limit. Use faster units: 16 bits.
# - **Well below its roof**: the kernel itself is slow. A better kernel, layout or shape helps.
#
# ## Shapes
#
# Tensor Cores work on tiles. The methods slides multiply [16, 36, 1504] × [1504, 10000] on a V100: 1.340 ms in fp32, 0.267 ms in fp16, 5.02 times as fast. With K = 1500 it is 1.05 times, with N = 9999 1.01 times: nearly all of the gain is lost. (Their row for M = 35 shows nothing about M: [14](14_checking_the_articles.ipynb).) NVIDIA's rule, as the slides quote it:
#
# | type | before cuBLAS 11 | since then: any size, best in multiples of | on an A100 |
# |---|---|---|---|
# | INT8 | multiples of 16 | 16 | 128 |
# | FP16 | multiples of 8 | 8 | 64 |
# | TF32 | – | 4 | 32 |
# | FP64 | – | 2 | 16 |
#
# For images it concerns the numbers of channels, in the layout NHWC; for language models vocabulary, hidden sizes and tokens per batch. Which neighbouring shapes are slow *here*? (On a CPU hardly any but that of 8 rows.)

# %%
kernels.table("By shape")

# %% [markdown]
# Sizes that do not fit can be padded, which adds work. Measure first: for 3 input channels, libraries have special kernels.
#
# ## Your step
#
# *Utilisation of the peak* is the step's FLOP/s divided by the peak measured here. Published *MFU* divides by the data sheet's peak: do not compare the two.

# %%
kernels.table("A step of")

# %% [markdown]
# ## Who chooses the kernel?
#
# By default a library follows rules of thumb. The alternative is to observe shapes, try the candidates, and run with the fastest: `cudnn_benchmark` for convolutions, `compile_mode="max-autotune"` for compiled code. Both pay only if shapes repeat.
#
# ## Nsight Systems
#
# `nsys` also records every thread, the driver and the operating system. Name the parts of your step with `with torch.cuda.nvtx.range("augment"):`. Record steady steps only, as the slides do: `torch.cuda.profiler.start()` before step 20, `stop()` before step 30.
#
# ```bash
# nsys profile -t cuda,nvtx,osrt,cudnn,cublas -c cudaProfilerApi -o report python train.py
# ```
#
# `-t` says what is traced, `-c` waits for your `start()`. Open the report in Nsight Systems, and read it in five steps:
#
# 1. Which named range takes most of the step?
# 2. Which kernels take most of the time? This tells you which kernel, not which input shape.
# 3. Among the calls of one kernel, are some much slower?
# 4. Which operator and range launched those?
# 5. Unfold the threads: what do they wait for?
#
# The slides' cases: a convolution that chose its algorithm in every step (host), threads waiting in `pthread_mutex_lock` (host), a slow kernel for a temporal shift (device), weight decay as many small kernels: fuse it into the optimizer (device).

# %% [markdown]
# **The GPU's row shows many short kernels with gaps of equal length. Which bottleneck?**
#
# <details><summary>The device</summary>
#
# **No.** Then there would be no gaps.
#
# </details>
#
# <details><summary>The host: it cannot launch fast enough</summary>
#
# **Right.** Remedy: fewer, larger kernels. A larger batch, fusion, CUDA graphs.
#
# </details>
#
# <details><summary>The data</summary>
#
# **No.** Waiting for data makes one long gap in each step.
#
# </details>

# %% [markdown]
# **The GPU is busy 97% of the time. What can still be gained?**
#
# <details><summary>At most 3%</summary>
#
# **No.** That is what filling the gaps would give.
#
# </details>
#
# <details><summary>Perhaps a lot: busy kernels can be slow</summary>
#
# **Right.** After 97.51%, the walk-through still went from 1,670 to 3,268 samples/s with 16 bits, a larger batch and compiling.
#
# </details>

# %% [markdown]
# ### Puzzle ★★★: pad the layer
#
# *About 25 minutes.*

# %%
pk.puzzle("padding")


# %%
def pad_head(head):
    return head


pk.puzzle("padding").check(pad_head)

# %% [markdown]
# ### Puzzle ★★: fuse the optimizer
#
# *About 15 minutes.*

# %%
pk.puzzle("fused_optimizer")


# %%
def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)


pk.puzzle("fused_optimizer").check(make_optimizer)

# %% [markdown]
# Next: [13 several GPUs](13_several_gpus.ipynb)
