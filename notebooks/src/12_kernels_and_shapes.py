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
# *After this you can say which limit an operation meets, choose sizes that suit the hardware, and read a timeline of Nsight Systems.*
#
# A device has two limits, or *roofs*: operations per second, and bytes per second. *FLOPs per byte* decides which one an operation meets first. A large matrix product has many; adding tensors has few.

# %%
from perfkit import notebook as pk

kernels = pk.kernels("cifar_resnet18")
kernels.table("Roofs")

# %%
import matplotlib.pyplot as plt
import numpy as np

report = kernels.found
peak, bandwidth = report.peaks["float32"], report.bytes_per_s
print(f"The roofs meet at {peak / bandwidth:.1f} FLOPs per byte, in float32")
some = [row for row in report.rows if row.dtype == "float32"]
wide = max(some, key=lambda row: row.flops_per_byte)
thin = min(some, key=lambda row: row.flops_per_byte)
fits, k_off, n_off = (
    next(row for row in some if name in row.shape) for name in ("1504 x 2504", "1500 x 2504", "1504 x 2503")
)
x = np.geomspace(0.5, 1000, 200)
plt.loglog(x, np.minimum(peak, x * bandwidth) / 1e9, label="roofs, measured")
for row, marker in zip((thin, fits, k_off, n_off, wide), "vosD^", strict=True):
    plt.loglog(row.flops_per_byte, row.flops_per_s / 1e9, marker, label=row.shape)
plt.xlabel("FLOPs per byte")
plt.ylabel("GFLOP/s")
plt.legend()
plt.show()

# %% [markdown]
# - **Left of the corner**: memory is the limit. Move fewer bytes: fusion, smaller types.
# - **Right of it**: arithmetic is the limit. Use 16 bits where their roof is higher.
# - **Well below its roof**: the kernel is slow. Another layout or shape helps.
#
# ## Shapes
#
# Tensor Cores work on tiles. The methods slides multiply [16, 36, 1504] × [1504, 10000] on a V100: 1.340 ms in fp32, 0.267 ms in fp16, 5.02 times as fast. With K = 1500 it is 1.05 times, with N = 9999 1.01 times: nearly all of the gain is lost. (Their row for M = 35 shows nothing about M: [14](14_checking_the_articles.ipynb).) NVIDIA's rule, as the slides quote it:
#
# | type | before cuBLAS 11, cuDNN 7.6.3 | since then: any size, best in multiples of | on an A100 |
# |---|---|---|---|
# | INT8 | multiples of 16 | 16 | 128 |
# | FP16 | multiples of 8 | 8 | 64 |
# | TF32 | – | 4 | 32 |
# | FP64 | – | 2 | 16 |
#
# For images the rule concerns channels, in the layout NHWC; for language models vocabulary, hidden sizes and tokens per batch. The slides' cases, in 16 bits here:

# %%
for row in report.rows:
    if row.dtype == "bfloat16" and row.shape.endswith(("1504 x 2504", "1500 x 2504", "1504 x 2503")):
        print(
            f"{row.shape:18} {row.seconds * 1e3:6.2f} ms, {row.flops_per_s / report.peaks['bfloat16']:4.0%} of the peak"
        )

# %% [markdown]
# Pad sizes that do not fit, but measure first.
#
# ## Your step
#
# *Utilisation of the peak* is the step's FLOP/s divided by the peak measured here. If it is low, most of the step is not in large products: profile it. (At `quick`: 32 images of 64 × 64.) Published *MFU* divides by the data sheet's peak: do not compare the two.

# %%
kernels.table("A step of")

# %% [markdown]
# ## Who chooses the kernel?
#
# By default a library follows rules of thumb. The alternative is to try the candidates on your shapes, and run with the fastest: `cudnn_benchmark` for convolutions, `compile_mode="max-autotune"` for compiled code. Both need shapes that repeat.
#
# ## Nsight Systems
#
# `nsys` also records every thread, the driver and the operating system. Name the parts of your step with `with torch.cuda.nvtx.range("augment"):`. Record steady steps only, as the slides do: `torch.cuda.profiler.start()` before step 20, `stop()` before step 30.
#
# ```bash
# nsys profile -t cuda,nvtx,osrt,cudnn,cublas -c cudaProfilerApi --capture-range-end=stop -o report python train.py
# ```
#
# `-c` waits for your `start()`. Without `--capture-range-end=stop`, your `stop()` ends the training, too.
#
# It has three groups of rows: which *CPU* cores are busy; *CUDA* streams, with kernels and copies; *threads*, which run, wait or are not scheduled. Read it in five steps:
#
# 1. Which named range takes most of the step?
# 2. Which kernels take most of the time? This tells you which kernel, not which input shape.
# 3. Among the calls of one kernel, are some much slower?
# 4. Which operator and range launched those?
# 5. Unfold the threads: what do they wait for?
#
# The slides' cases: a convolution that chose its algorithm in every step (host), threads waiting in `pthread_mutex_lock` (host), a slow kernel for a temporal shift (device), weight decay as many small kernels (device; fuse it into the optimizer).

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
# ## Check yourself
#
# **The GPU's row shows many short kernels with gaps of equal length. Which bottleneck?**
#
# <details><summary>Answer</summary>
#
# The host, which cannot launch fast enough. Use fewer, larger kernels: a larger batch, fusion, CUDA graphs. Waiting for data would be one long gap in each step.
#
# </details>
#
# **The GPU is busy 97% of the time. What can still be gained?**
#
# <details><summary>Answer</summary>
#
# Perhaps a lot, because busy kernels can be slow. After 97.51%, the walk-through still went from 1,670 to 3,268 samples/s.
#
# </details>
#
# **A vocabulary of 50,257: what would you try?**
#
# <details><summary>Answer</summary>
#
# Pad it to 50,304, a multiple of 64.
#
# </details>
#
# Next: [13 several GPUs](13_several_gpus.ipynb)
