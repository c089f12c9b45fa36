# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 19 · Checking the articles
#
# **Do the figures that this workbook quotes agree with each other?**
#
# *About 10 minutes of reading; nothing is measured. Needs: nothing special.*
#
# This workbook follows four articles: a walk through PyTorch's profiler, slides on finding bottlenecks, a guide to distributed training, and a guide to device placement. Nearly all of their advice is good, and in a few places their figures contradict each other. You need neither their machine nor their code to see it: a rate is samples ÷ time, a step is the sum of its parts, and a total is the sum of its rows. Use the same checks on any benchmark you read, and on your own.
#
#
# Every figure on this page is an article's, or calculated from an article's. None of them was measured here.

# %% [markdown]
# ## A step time and a rate that disagree
#
# The profiler article takes ResNet-18 at batch size 32 from an 80 ms step to a rate of 1,200 samples/s, reached by pinning. Beside that rate it prints a step of 46 ms. Both cannot be true: the article's 32 samples in 46 ms would be 696 samples/s, and slower than the 37 ms of the stage before, although the article says that the step got shorter. At 1,200 samples/s the article's step would take 26.7 ms.
#
# Which of the two is wrong? The article gives a third figure: *GPU utilisation*, the share of the step in which a kernel runs. Step time × utilisation is the time that kernels take. Moving data faster does not change the kernels, so this time should be the same in every stage:

# %%
import matplotlib.pyplot as plt

stages = {  # the article's step in ms and utilisation
    "baseline": (80, 0.3165),
    "8 workers": (37, 0.7281),
    "pinned, 46 ms": (46, 0.9237),
    "pinned, 1,200/s": (32 / 1200 * 1e3, 0.9237),
}
kernels_ms = {name: step * busy for name, (step, busy) in stages.items()}
rest_ms = {name: step - kernels_ms[name] for name, (step, _) in stages.items()}
for name, (step, _) in stages.items():
    print(f"{name:15} {step:5.1f} ms = kernels {kernels_ms[name]:4.1f} + rest {rest_ms[name]:4.1f}")

figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
axes.barh(list(stages), list(kernels_ms.values()), label="kernels run")
axes.barh(list(stages), list(rest_ms.values()), left=list(kernels_ms.values()), label="no kernel runs")
axes.invert_yaxis()
axes.set_xlabel("ms per step, from the article's figures")
axes.legend()
plt.show()

# %% [markdown]
# With the rate, the kernels take about 25 ms in all three of the article's stages; with the printed step they would suddenly take 42 ms. The rate is right. This workbook therefore quotes the rate and marks the step time as derived.
#
# The same table explains two more of the article's figures. After the workers, kernels (27 ms) and the article's copies (10 ms) add up to its whole step of 37 ms: one after the other, with no overlap. After pinning, the article has about 2 ms left for a copy of 32 × 3 × 224 × 224 float32 values, which is about the speed of a PCIe 3.0 link:

# %%
batch_bytes = 32 * 3 * 224 * 224 * 4
for name, copy_ms in (("from pageable memory", 10), ("pinned, at least", rest_ms["pinned, 1,200/s"])):
    print(f"{name}: {batch_bytes / 1e6:.1f} MB in {copy_ms:.1f} ms = {batch_bytes / copy_ms / 1e6:.1f} GB/s")

# %% [markdown]
# So the article's gain is a *faster* copy. It is not what the article says, that the next batch is copied while the current one trains: its script copies on the stream that also runs the kernels, and one stream does one thing at a time. [Chapter 03](03_pinning.ipynb) has the details.
#
# ## Utilisation is not speed
#
# The slides' aim is 100% utilisation; the profiler article calls 40% terrible. But look at what the article measured next:
#
# | the article's change | utilisation | throughput |
# |---|---|---|
# | batch size 32 → 512 | "not much change" | 1,200 → 1,584 |
# | AMP, and batch size → 1,024 | slightly *lower* | 1,670 → 2,477 |
#
# Low utilisation shows that the device is idle. High utilisation only says that *some* kernel runs, not that it is a good one. Aim for samples per second; use utilisation to find out why they are few.
#
# (A rise from 31.65% to 72.81% is also not the article's "more than 200%": it is 2.3 times as much, an increase of 130%.)
#
# ## A stage that changed nothing
#
# The article sets `set_to_none=True` in `zero_grad` and finds no effect. It could not find one: the article used PyTorch 2.0, and since that version `True` is the default. Both sides of the comparison ran the same code. (The stage `zero_grad` in [chapter 05](05_uint8_copy.ipynb) compares `False` with `True`.)
#
# ## Two changes under one name
#
# The article's gain of "almost 50%" for AMP was measured with the batch size doubled as well, from 512 to 1,024. How much of it is AMP's? The article cannot say. (perfkit's preset `paper` changes both too, to follow the article, and says so; `quick` changes one.) The article's listing for the uint8 stage already has batch size 1,024 *and* `torch.compile`, which come two and three stages later. And where its text sets the profiler's warm-up to 3 steps, its code has `warmup=4`. Export the script from the program that was measured, and such a difference cannot arise.
#
# ## A table that does not test what it says
#
# The slides multiply x [16, M, K] by y [K, N] on a V100 and conclude that fp16 needs dimensions that are multiples of 8:

# %%
rows = [  # M, K, N, the article's fp32 and fp16 times in ms, and its comment
    (36, 1504, 10_000, 1.340, 0.267, "all multiples of 8"),
    (35, 1504, 10_000, 1.330, 0.264, "M is not"),
    (36, 1500, 10_000, 1.433, 1.367, "K is not"),
    (36, 1504, 9_999, 1.406, 1.388, "N is not"),
]
print(" M   M/8  16·M  16·M/8  speed-up  fp16 TFLOP/s  the slides' comment")
for m, k, n, fp32_ms, fp16_ms, comment in rows:
    tflops = 2 * 16 * m * k * n / fp16_ms / 1e9
    print(
        f"{m:2} {m / 8:5.2f}  {16 * m:4} {16 * m / 8:7.2f} {fp32_ms / fp16_ms:8.2f}× {tflops:13.1f}  {comment}"
    )

# %% [markdown]
# K and N: the conclusion holds. With K = 1500 or N = 9999 the article's fp16 product runs at the speed of fp32 products, so the Tensor Cores were not used, and nearly all of the article's gain (5.02×) is lost.
#
# M: the table cannot say. Its first row is labelled "all multiples of 8", but 36 is not one. And since y has no batch dimension, a library may compute the whole as one product with 16 · M rows: then both 16 · 36 = 576 and 16 · 35 = 560 *are* multiples of 8. Either way the two rows are of the same kind, so it is no surprise that they are equally fast. To test M, the slides would have needed two rows that differ in what they test. [Chapter 15](15_kernels_and_shapes.ipynb) measures such rows on your machine.
#
# ## A total that fell for another reason
#
# The placement article removes 20 synchronous copies, and its total falls from 26.6 to 14.5 ms. But the same report says that those copies took 1.03 ms. Subtract the article's two reports row by row:

# %%
report = {  # the article's total and slowest call in ms, before and after
    "executor set-up": (9.16493, 8.85968, 7.70113, 7.39363),
    "shape": (8.33057, 7.99849, 1.93504, 1.6016),
    "fill_constant": (4.06097, 0.888959, 2.62299, 0.342082),
    "slice": (1.78033, 0.290851, 0.324241, 0.07213),
    "crop_tensor": (1.67658, 0.258776, 0.705426, 0.123901),
    "Fetch": (0.919361, 0.138122, 0.880496, 0.140896),
    "the rest": (0.70008, 0.114403, 0.365178, 0.069071),
}
print(f"{'':16}   total, ms             without the slowest call")
print(f"{'':16}  before   after   saved    before   after")
for name, (before, before_max, after, after_max) in report.items():
    figures = (
        f"{before:8.2f}{after:8.2f}{before - after:8.2f}{before - before_max:10.2f}{after - after_max:8.2f}"
    )
    print(f"{name:16}{figures}")
before, after = (sum(row[column] for row in report.values()) for column in (0, 2))
touched = sum(report[name][0] - report[name][2] for name in ("slice", "crop_tensor"))
print(f"saved: {before - after:.2f} ms; by the two operators that the fix touches: {touched:.2f} ms")

# %% [markdown]
# More than half of what the article saved is `shape`, which the fix does not touch. Its slowest call is nearly all of its time, and without that one call it takes the same before and after; so does the executor's set-up. Such a call is most likely the first one, which is slow for reasons of its own. The two operators that the fix does touch, `slice` and `crop_tensor`, saved 2.4 ms in the article, of which 1.03 ms are the copies.
#
# The fix is right. Without the slowest calls, its share of the time is even larger than the copies' 3.87% suggest. But the article's total gives it credit for a slow start, five times as much as it earned. [Chapter 14](14_hidden_transfers.ipynb) repeats the experiment with warm-up left out and both sides interleaved.
#
# ## Examples that do the opposite
#
# Two listings in the distributed article are worth running in your head:
#
# - *Fetch results every 30 steps, not in every step*: `batch_id = 0`, then `while True: if batch_id % 30 == 0: …`. Nothing increases `batch_id`, so it fetches in every step.
# - *Normalise on the GPU*: the standard deviation is created with the value 0.0, and the image is divided by it. The values are meant to be replaced, but nothing says so.
#
# The distributed article also says that memory grows in proportion to the batch size. Activations do; weights, gradients and optimizer state do not ([chapter 18](18_memory.ipynb)).
#
# ## What holds up
#
# | the article's claim | check |
# |---|---|
# | 512 samples in 324 ms are 1,584 samples/s (the article rounds) | 512 ÷ 0.324 = 1,580 |
# | 8 instead of 2 workers double the rate (the slides) | waiting took half of the step; without it, at most twice the rate, and 2.1 was measured |
# | the article's V100 runs fp32 at 12.9 TFLOP/s | 82% of the 15.7 of its data sheet: plausible |
# | a table of 10,000,000 × 150 float32 takes the article's 5.59 GiB | 6.0e9 bytes ÷ 2³⁰ |
# | uint8 needs a quarter of the bytes | 1 byte instead of 4 |
# | compiling gains 32% in the article, all stages together eight times | 3,268 ÷ 2,477 = 1.32; 3,268 ÷ (32 ÷ 0.080) = 8.2 |
#
# ## Checking the simulation, too
#
# This workbook has figures of its own that nobody measured: those of simulated GPUs. They get the same treatment. The model was fitted to published measurements; what counts is its error on models that took no part in the fit. [How a simulated GPU predicts times](../docs/simulation.md) has the table of its errors, and says what was tried and what is known to be wrong.
#
# ## When such a check misleads
#
# - It shows that two figures disagree, not which one is wrong; that needs a third figure, as above.
# - Printed figures are rounded. A difference in the last digit is no contradiction.
# - Figures that agree can still be wrong together: a confounded comparison adds up perfectly.
#
# ## Exercise
#
# Suppose that nothing but the kernels cost time in the article's baseline. How many samples per second would that be? Compare it with the 1,200 samples/s of the article's pinned stage.

# %% tags=["exercise"]
answer = None  # a number, computed from kernels_ms["baseline"]

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    assert abs(answer * kernels_ms["baseline"] / 1e3 - 32) < 0.5, "Samples ÷ seconds: a batch has 32 samples"
    print(f"Right: {answer:,.0f} samples/s. No loader and no copy can make this batch size faster than that")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = 32 / (kernels_ms["baseline"] / 1e3)
# ```
#
# The article's 1,200 samples/s are 95% of it. After that, only better kernels could help: larger batches, AMP and compiling, which is what the article did next.
#
# </details>

# %% [markdown]
# Next: [20 profiling by hand](20_profiling_by_hand.ipynb)
