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
# *After this you can pack a text, count the tokens and FLOPs of a step, and say what keeps a model from its device's peak.*
#
# A small GPT trains on this workbook's text. At first each line is padded to 128 characters, attention is written out, and everything is float32.
#
# A device has two limits, or *roofs*: operations and bytes per second. *FLOPs per byte* decide which one an operation hits first. Large products have many, additions of tensors few.

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


def first(*shapes):
    """The first row of one of these shapes: a GPU is measured with wider ones."""
    return next(row for row in some if any(shape in row.shape for shape in shapes))


fits = first("1504 x 2504", "1504 x 10000")
k_off = first("1500 x 2504", "1500 x 10000")
n_off = first("1504 x 2503", "1504 x 9999")
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
# - **Right of it**: arithmetic is the limit. Use 16 bits if their roof is higher.
# - **Well below its roof**: the kernel is slow for this shape or layout.
#
# ## Where the GPT starts
#
# *MFU* (model FLOPs utilisation) is the FLOP/s that real tokens need, divided by the device's peak, here the highest measured roof of any type. It has three factors. Change one, and see whether the MFU rises, or another factor falls.

# %%
from perfkit import Recipe
from perfkit.workloads.tiny_gpt import TinyGPT, padded_lines

targets = TinyGPT(**size, padded=True).dataset(Recipe()).tensors[1]
real = (targets != 0).float().mean().item()
flops_per_token = report.flops / (batch * context)
highest = max(report.peaks.values())


def tell(name, real_tokens_per_s, real=1.0, dtype="float32"):
    mfu, of_type = real_tokens_per_s * flops_per_token / highest, report.peaks[dtype] / highest
    print(f"{name:18} {real_tokens_per_s:7,.0f} real tokens/s: MFU {mfu:.0%}", end=" = ")
    print(f"{real:.0%} real × {of_type:.0%} of the peak by type × {mfu / real / of_type:.0%} of that roof")


first_rate = real * batch * context / report.step_s
tell("the first loop", first_rate, real)

# %% [markdown]
# ## Your line: padding → packing
#
# Begin with the gain that is certain: padding teaches nothing, so packing gains 1 ÷ the real share. It cuts the text into full samples of `context + 1` characters. Replace the marked line.

# %% tags=["exercise"]
from pathlib import Path

import torch

from perfkit.workloads.files import text_file

text = torch.tensor(list(Path(text_file("texts/workbook.txt")).read_bytes()))
samples = padded_lines(text, context + 1)  # edit

# %% tags=["check"]
used = (samples != 0).float().mean().item()
if used < 1:
    print(f"Your turn: {1 - used:.0%} of these samples is padding. Edit the line above, and run both cells.")
else:
    assert samples.shape[1] == context + 1, f"A sample has {samples.shape[1]} characters, not {context + 1}"
    assert len(text) - samples.numel() <= context, "Too few characters, or some of them twice"
    assert torch.equal(samples.flatten(), text[: samples.numel()]), "Each character once, in its order"
    print(f"Right: a step trains on {1 / real:.2f} times as many real tokens")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# samples = text[: len(text) // (context + 1) * (context + 1)].view(-1, context + 1)
# ```
#
# Attention now sees across lines. Where that matters, give it a mask (`flex_attention`).
#
# </details>

# %% [markdown]
# ## Attention in one kernel, and what both gain
#
# Written out, attention stores a score for each pair of characters, and reads them again. `F.scaled_dot_product_attention` (SDPA) can keep them on the chip. The referee runs the first loop and the one with both changes in turn. Packing doesn't change a step's time, so the step's ratio is SDPA's alone. *Guess it for only 128 characters.*

# %%
import json
import sys
import tempfile

folder, perfkit = tempfile.mkdtemp(), f"{sys.executable} -m perfkit"
options = " ".join(f"--option {name}={value}" for name, value in size.items())
export = f"{perfkit} export --workload tiny_gpt --set batch_size={batch} --steps 100000 {options}"
plain = f"{export} --option padded=true --option stores_scores=true -o first.py"
# !cd {folder} && {plain} && {export} -o packed_sdpa.py
judged = "first.py packed_sdpa.py --budget 120 --allow losses --allow moved --json result.json"
# !cd {folder} && {perfkit} referee {judged} 2>&1 | cat
result = json.loads(Path(folder, "result.json").read_text())
low, ratio, high = (result[name] / real for name in ("low", "ratio", "high"))
print(f"SDPA {result['ratio']:.2f} × packing {1 / real:.2f} = {ratio:.2f} ({low:.2f} to {high:.2f})")
tell("packed, SDPA", first_rate * ratio)

# %% [markdown]
# With so few characters, SDPA has little to save: packing is the gain. (*Undecided*? The command wants an interval of ± 4%, the panel ± 5%.) (Rates drift, so the ones below are the first rate multiplied by every ratio measured since.)
#
# ## What is left: the type, or the products?
#
# Nothing is padding now. bf16 raises the factor *by type*, where its roof is higher. *Fused* AdamW updates all parameters in a few kernels. *Guess: does either gain here?*

# %%
panel = pk.RecipePanel(
    {"packed, SDPA": {}, "bf16": {"amp": "bf16"}, "fused AdamW": {"optimizer_impl": "fused"}},
    options=size,
    **where,
)
panel.run()

# %%
for run in panel.runs:
    gain = run.speedup("baseline")
    if gain and not run.is_again:
        dtype = "bfloat16" if run.title == "bf16" else "float32"
        tell(run.title, first_rate * ratio * gain.ratio, dtype=dtype)

# %% [markdown]
# If bf16 raises the factor *by type* and the rate hardly moves, the last factor falls: the type was not what held it back. The time is probably in small operators (norms, additions) and in products too small to reach their roof. Fuse the former; make the latter larger, with a wider model or a larger batch.
#
# ## Appendix: compile by region
#
# The more operations, the longer compiling takes. `model.compile()` compiles all blocks; `block.compile()`, called on each, only the first: the others, which are alike, reuse its kernels.

# %%
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
# ## Appendix: shapes
#
# Tensor Cores work on tiles. The methods slides multiply [16, 36, 1504] × [1504, 10000] on a V100, 5.02 times as fast in fp16 as in fp32; with K = 1500 1.05 times, with N = 9999 1.01 times. Since cuBLAS 11 any size can use them, and multiples of 8 work best (64 on an A100).
#
# The same test here in bf16, on a CPU smaller, and with sizes slightly off. With 8 rows the product, near the corner, reaches neither roof:

# %%
half = "bfloat16" if "bfloat16" in report.peaks else "float16"  # a T4 or V100 has no bf16
near = ("1504 x 2504", "1500 x 2504", "1504 x 2503", "1504 x 10000", "1500 x 10000", "1504 x 9999")
for row in report.rows:
    if row.dtype == half and row.shape.endswith(near):
        roof = min(report.peaks[half], row.flops_per_byte * report.bytes_per_s)
        print(f"{row.shape:18} {row.seconds * 1e3:6.2f} ms, {row.flops_per_s / roof:4.0%} of its roof")

# %% [markdown]
# `cudnn_benchmark` and `compile_mode="max-autotune"` try several algorithms.

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
# The host. Use fewer, larger kernels: a larger batch, fusion, CUDA graphs.
#
# </details>
#
# **The GPU is busy 97% of the time. What can still be gained?**
#
# <details><summary>Answer</summary>
#
# Perhaps a lot: busy kernels can be slow. After 97.51%, the walk-through still went from 1,670 to 3,268 samples/s.
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
