# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01 · Baseline
#
# *About 1 minute at the preset `quick` on two cores; at `paper` on a GPU at most 2 (planned, not timed). Needs: nothing special.*
#
# Measure before you change anything. The plain loop loads its data in the training process and computes in float32; whatever else there is to set has PyTorch's default, as in a first script. Nothing in it is optimised, and nothing is slowed down.
#
# <details><summary>The article's baseline</summary>
#
# The article trains ResNet-18 with ImageNet weights and its head of 1,000 classes. 10,000 random images of 32 × 32 × 3 bytes with labels 0 to 9 (CIFAR-10 in shape), enlarged to 224 × 224 by PIL's `Resize`, then `ToTensor` and `Normalize(0.5, 0.5)`. Batch size 32, shuffled, no workers; SGD with learning rate 0.001 and momentum 0.9, cross entropy. PyTorch 2.0 on one V100-SXM2-16GB with 8 vCPUs (an AWS p3.2xlarge). This is the workload `cifar_resnet18` at the preset `paper`; on a CPU the default is `photos`, which decodes small JPEG files.
#
# The article came from a disappointment: the official profiler tutorial, run on a V100, kept the GPU busy for 23.54% of a 132 ms step, and its optimised version for 40.46%: less than half, after the optimisation. The article's own baseline: 31.65% of 80 ms.
#
# </details>

# %%
from IPython.display import Markdown

from perfkit import notebook as pk

panel = pk.StagePanel("baseline")

# %% [markdown]
# ## Predict before you run
#
# What share of a step does this loop spend waiting for data? Write down *your* number, from 0% (never waits) to 100% (always waits).
#
# ## Run
#
# Press *Run* in the panel, or run the second cell: the result appears below the one that you used.

# %%
panel

# %%
panel.run()

# %% [markdown]
# ## Where does the time go *here*?
#
# The rate in the table is that of several rounds, with its interval: run it again, and the new rate should lie in or near it. If the run carries a warning that other programs took part of the cores, close them and run it again before you believe it. Nothing is compared yet, so there is no verdict; from the next chapter on there is one, and a row *baseline (again)* that shows how far two equal runs differ on this machine ([how stages are compared](00_start_here.ipynb)).
#
# A step has two parts: waiting in `next(loader)`, and everything else. The *ceiling* is the throughput of the same step on one batch that is already on the device. It is what the loop could reach if loading data cost nothing.

# %%
run = panel.runs[0]
waiting = run.data_wait_share or 0
Markdown(
    f"This loop waits for data during {waiting:.0%} of a step. Most of the step is "
    f"**{'waiting for data' if waiting > 0.5 else 'computing'}**."
)

# %% [markdown]
# perfkit does not trust the settings: it checks on the actual objects that every switch is off. The panel lists the evidence, folded.
#
# This is the measured loop as a standalone script, which does not need perfkit. Each later chapter shows what it changes in this script.

# %%
pk.training_loop(panel.runs)

# %% [markdown]
# ## The same on a simulated V100
#
# The article trained on a V100. If you have no GPU, you can still see how its baseline behaves: in a *simulation*. A model predicts the time of every kernel, and the rest is computed for the article's machine. Nothing is measured: each value is marked `sim.` and carries the error to expect of the model ([how to read it](00_start_here.ipynb), under *Without a GPU*). The next cell opens a simulation that was recorded:

# %%
simulated = pk.StagePanel("baseline", device="recorded:sim-v100")
simulated.run()

# %% [markdown]
# In the menu *Where*, each panel can compute a simulation of its own.

# %% [markdown]
# ## When a baseline misleads
#
# - The article's profiler did not blame the loader: the loader's time was hidden under "CPU Exec" and "Other".
# - On a shared machine, a number without an interval means little.
# - A profiler slows the step down. Throughput is therefore measured without one.
#
# ## What to remember
#
# - Measure the wait for data first: it decides whether anything in the model is worth changing.
# - The ceiling bounds what a better loader can give.
# - A rate needs an interval, and a machine that does nothing else.
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. The plain loop waits for data half of the time. How much faster can a loader that costs nothing make it?**
#
# <details><summary>One and a half times as fast</summary>
#
# **No.** That would follow if half of the time were added to the speed. The time is halved, so the speed doubles.
#
# </details>
#
# <details><summary>As fast as the GPU's data sheet says</summary>
#
# **No.** The other half of the step stays as it is. A better loader does not change the computation.
#
# </details>
#
# <details><summary>At most twice as fast</summary>
#
# **Right.** Half of the step is left. Amdahl's law: removing a share s of the time gives at most 1 / (1 − s).
#
# </details>
#
# **2. The profiler's summary blames `CPU Exec` and `Other`, and does not mention the loader. What follows?**
#
# <details><summary>The model needs a faster CPU</summary>
#
# **No.** That may be, but first find out what the CPU does. Here it decodes images, which workers can do.
#
# </details>
#
# <details><summary>The loader is fast enough</summary>
#
# **No.** A summary only names the categories that it knows. The article's loop waited for data, and its summary did not say so.
#
# </details>
#
# <details><summary>Look at the timeline, and at the time in <code>next(loader)</code></summary>
#
# **Right.** A loader without workers runs in the training process. Its time is booked as ordinary CPU time: in the article it was hidden there.
#
# </details>
#
# **3. Why is the throughput of a run not taken from a profiled run?**
#
# <details><summary>The profiler only sees the GPU</summary>
#
# **No.** It sees operators on the host, too. That is just what slows the host down.
#
# </details>
#
# <details><summary>The profiler slows the step down, and unevenly</summary>
#
# **Right.** It records every operator, which costs most where operators are small. A profile says where time goes; a clock says how much.
#
# </details>
#
# <details><summary>A profile does not contain the step's time</summary>
#
# **No.** It does, but the step is longer than without the profiler.
#
# </details>

# %% [markdown]
# ## Exercise
#
# What is the largest possible speed-up of this training if loading data cost nothing? Compute it from `run`.

# %% tags=["exercise"]
answer = None  # a number, computed from run.ceiling_samples_per_s and ...

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    reached = run.samples_per_s.value * answer
    assert abs(reached / run.ceiling_samples_per_s - 1) < 0.005, (
        "The throughput multiplied by your answer is not the ceiling"
    )
    print(f"Right: at most {answer:.2f} times as fast")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = run.ceiling_samples_per_s / run.samples_per_s.value
# ```
#
# If the answer is close to 1, a faster loader cannot make this training faster: look at the computation instead.
#
# </details>

# %% [markdown]
# Next: [02 data loading](02_data_loading.ipynb)
