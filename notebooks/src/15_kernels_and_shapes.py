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
# **What can this device do, and how much of it does your training use?**
#
# *About 3 minutes at the preset `quick` on two cores. Needs: nothing special; Tensor Cores make the differences large.*
#
# A device has two roofs: so many operations a second, and so many bytes a second. Which one a piece of work hits depends on its *FLOPs per byte*: a large matrix product has many, adding two tensors has almost none. Under the roofs, what a product really reaches depends on its shape: matrix units work on tiles, and a size that is no multiple of the tile leaves part of it empty.

# %%
from perfkit import notebook as pk

name = "perfkit.workloads.bottlenecks:DeviceBound"
found = pk.kernels(name)
found.table("Roofs")

# %% [markdown]
# These roofs were measured just now, by large products and a large copy; a data sheet promises more.
#
# ## Shapes
#
# The article's product is [16 · 36, 1504] × [1504, 10000] (on a CPU: a quarter of it each way). On a V100 the article measured 1.340 ms in fp32 and 0.267 ms in fp16; with K = 1500 instead of 1504 half of the fp16 gain was lost (1.05× where it had been 5.02× over fp32), with N = 9999 almost all. Since cuBLAS 11 odd sizes work, but multiples of 8 are still faster.
#
# Predict: which of the neighbours below is slow *here*?

# %%
found.table("By shape")

# %%
found.plot("shapes")

# %%
found.plot("roofline")

# %% [markdown]
# Points far below their roof waste the device. A point left of the bend is bound by bytes: no kernel can help it, only *fusion*, which keeps values in registers between operators.
#
# ## Your step
#
# *MFU*, model FLOPs utilisation, is the FLOP/s of the whole step over the measured peak. The *share of the speed of light* adds the time that the bytes need: FLOPs / peak + bytes / bandwidth, over the step. It counts each operator's bytes as if it ran alone, so fusing lowers the bytes.

# %%
found.table("A step of")

# %% [markdown]
# ## Sizes that do not fit
#
# Layers of this model whose sizes are no multiples of 8, and what padding them would cost in FLOPs. Whether it pays only measuring can say: the first layer of an image model has 3 channels, and libraries know that case.

# %%
found.table("Layers")

# %% [markdown]
# ## Before and after
#
# Layout, fused optimizer, TF32, cuDNN's search and compile act on kernels. They are switches like the others: `channels_last`, `optimizer_impl`, `tf32`, `cudnn_benchmark`, `compile`. A switch that cannot act here is left out and named among the facts.

# %%
panel = pk.RecipePanel(
    {
        "plain": {},
        "channels_last": {"channels_last": True},
        "fused optimizer": {"optimizer_impl": "fused"},
        "loop optimizer": {"optimizer_impl": "loop"},
        "cuDNN search": {"cudnn_benchmark": True, "tf32": True},
        "compiled": {"compile": True},
    },
    workload=name,
)
panel

# %%
panel.run()

# %%
panel.table()

# %%
panel.verdict()

# %% [markdown]
# ## Fusion, counted
#
# How many operators does one step call, plain and compiled? Fewer means that several were fused into one.

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
    print(f"{title}: {count:,.0f} a step")

# %% [markdown]
# The article's examples of fusion: add + relu, batch norm + relu, batch norm + add + relu, together about 6% on ResNet-50; weight decay inside the optimizer's own kernel.
#
# ## When it does not help
#
# - A step that waits for data does not care about kernels: see chapter 02 first.
# - A product that is bound by bytes gains nothing from better tiles.
# - Padding a layer changes the model; pad where the model is defined, not after training.
#
# ## Exercise
#
# The first layer with an odd size above: by what share do its FLOPs grow when it is padded?

# %% tags=["exercise"]
answer = None  # 0.25 for a quarter more

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    first = found.found["misaligned"][0]
    wanted = first["padded"][0] * first["padded"][1] / (first["sizes"][0] * first["sizes"][1]) - 1
    assert abs(answer - wanted) < 0.01, "FLOPs of a layer grow with inputs times outputs"
    print(f"Right: {first['layer']} would take {wanted:.1%} more")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# first = found.found["misaligned"][0]
# answer = first["more_flops"]
# ```
#
# </details>

# %% [markdown]
# Next: [16 NVTX and Nsight](16_nvtx_and_nsight.ipynb)
