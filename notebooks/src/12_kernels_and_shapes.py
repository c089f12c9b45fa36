# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12 · Kernels, shapes and a small GPT
#
# **How many tokens per second, and how far from the device's limits?** *20 minutes. Needs: nothing special.*
#
# *After this you can count the tokens and FLOPs of a language model's step, and say which limit an operation hits.*
#
# You train a small GPT on this workbook's text. It starts as many scripts do: each line is padded to 128 characters, attention is written out, and everything is float32.
#
# A device has two limits, or *roofs*: operations per second, and bytes per second. *FLOPs per byte* decides which one an operation hits first. Large products have many, additions of tensors few.

# %%
from perfkit import notebook as pk

batch, context = 8, 128
size = {"context": context, "width": 128, "layers": 4, "heads": 4}
where = {"workload": "tiny_gpt", "settings": {"batch_size": batch}}
kernels = pk.kernels(options=size | {"padded": True, "stores_scores": True}, **where)
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
    plt.loglog(row.flops_per_byte, row.flops_per_s / 1e9, marker, markerfacecolor="none", label=row.shape)
plt.xlabel("FLOPs per byte")
plt.ylabel("GFLOP/s")
plt.legend()
plt.show()

# %% [markdown]
# - **Left of the corner**: memory is the limit. Move fewer bytes: fusion, smaller types.
# - **Right of it**: arithmetic is the limit. Use 16 bits where their roof is higher.
# - **Well below its roof** (often 8 rows): the kernel is slow. A different layout or shape helps.
#
# ## Where the GPT starts
#
# Padding teaches nothing, so count the other tokens. *MFU* (model FLOPs utilisation) is their FLOP/s divided by the device's peak, here the highest measured roof. A low MFU has three causes: tokens that teach nothing, a slower type than the peak's, and time outside large products.

# %%
from perfkit import Recipe
from perfkit.workloads.tiny_gpt import TinyGPT

padded = TinyGPT(**size, padded=True).dataset(Recipe())
targets = padded.tensors[1]
real = (targets != 0).float().mean().item()
flops_per_token = report.flops / (batch * context)


def tell(name, tokens_per_s):
    mfu = tokens_per_s * flops_per_token / max(report.peaks.values())
    print(f"{name:28} {tokens_per_s:8,.0f} tokens/s, MFU {mfu:.1%}")


start = real * batch * context / report.step_s
tell("padded, attention written out", start)
print(
    f"{real:.0%} of the tokens are real; float32's roof is {peak / max(report.peaks.values()):.0%} of the peak"
)

# %% [markdown]
# ## Padding → packing
#
# Packing cuts the text into full samples. A step takes just as long, so the gain can be computed. *Guess: how much of a batch is padding?*

# %%
print(f"{1 - real:.0%} of a padded batch is padding, so packing trains on {1 / real:.2f} times the tokens")
packed = start / real
tell("packed", packed)

# %% [markdown]
# Attention now sees across lines. Where that matters, give it a mask (`flex_attention`).
#
# ## Scaled dot-product attention
#
# Written out, attention stores a score for each pair of characters, and reads them all again. `F.scaled_dot_product_attention` can fuse this: scores stay in on-chip memory. Here are both as scripts, and a referee that runs them in turn. *Guess: faster, with so few characters?*

# %%
import sys
import tempfile

folder, perfkit = tempfile.mkdtemp(), f"{sys.executable} -m perfkit"
options = " ".join(f"--option {name}={value}" for name, value in size.items())
export = f"{perfkit} export --workload tiny_gpt --set batch_size={batch} --steps 100000 {options}"
# !cd {folder} && {export} --option stores_scores=true -o written_out.py && {export} -o sdpa.py
# !cd {folder} && {perfkit} referee written_out.py sdpa.py --budget 20 2>&1 | cat

# %% [markdown]
# ## bf16 and fused AdamW
#
# bf16 gains on matrix units, and may with AVX512-BF16. Without either, a CPU casts to float32, and gets slower. *Fused* AdamW updates all parameters in a few kernels. *Guess: which gains more here?*

# %%
panel = pk.RecipePanel(
    {
        "packed, SDPA": {},
        "bf16": {"amp": "bf16"},
        "fused AdamW": {"optimizer_impl": "fused"},
        "bf16 and fused AdamW": {"amp": "bf16", "optimizer_impl": "fused"},
    },
    options=size,
    **where,
)
panel.run()

# %%
measured = {run.title: context * run.samples_per_s.value for run in panel.runs if run.status == "ok"}
for name, rate in measured.items():
    tell(name, rate)
print(f"{max(measured.values()) / start:.1f} times the tokens per second of the first loop")

# %% [markdown]
# ## Compile by region
#
# The blocks of a GPT are alike. `model.compile()` compiles all of them as one graph. `block.compile()` compiles the first, and the others reuse its kernels. Compiling takes longer with more operations, so count them:

# %%
import torch

graphs = []


def counted(graph, inputs):
    graphs.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
    return graph.forward


for what in ("each block", "whole model"):
    torch.compiler.reset()
    graphs.clear()
    model = TinyGPT(**size).model()
    for part in model.blocks.layers if what == "each block" else [model]:
        part.compile(backend=counted)
    model(targets[:batch])
    print(f"{what}: graphs compiled: {len(graphs)}, with {sum(graphs)} operations")

# %% [markdown]
# ## Shapes
#
# Tensor Cores work on tiles. The methods slides multiply [16, 36, 1504] × [1504, 10000] on a V100, 5.02 times as fast in fp16 as in fp32. With K = 1500 it is 1.05 times, with N = 9999 1.01 times. The second matrix has no batch dimension, so that is one product of 16 · 36 = 576 rows. A quarter of its rows and columns is 144 × 1504 × 2504.
#
# NVIDIA's rule for 16 bits: since cuBLAS 11 any size works; multiples of 8 work best (64 on an A100). That applies to the vocabulary, hidden sizes and tokens per batch, and to the channels of images. The slides' cases, in 16 bits (CPUs hardly care):

# %%
for row in report.rows:
    if row.dtype == "bfloat16" and row.shape.endswith(("1504 x 2504", "1500 x 2504", "1504 x 2503")):
        print(
            f"{row.shape:18} {row.seconds * 1e3:6.2f} ms, {row.flops_per_s / report.peaks['bfloat16']:4.0%} of the peak"
        )

# %% [markdown]
# Libraries choose an algorithm by rules of thumb; `cudnn_benchmark` and `compile_mode="max-autotune"` try the candidates, which pays off if shapes repeat.
#
# To see every thread and the driver as well, use [Nsight Systems](../docs/articles.md#nsight-systems).

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
