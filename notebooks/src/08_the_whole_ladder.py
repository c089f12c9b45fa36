# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 · The whole ladder
#
# **How much do all of them gain together, and which of them matter here?**
#
# *About 6 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 10 (planned, not timed). Needs: nothing special.*
#
# The article's ladder ends eight times as fast as it began: 3,268 samples/s, from 400 (derived from the article's 80 ms). What does it come to here? [Chapter 20](20_profiling_by_hand.ipynb) turns such a factor into hours and money.
#
# All stages, each on top of the earlier ones that work here. They are all started first, as many as fit in memory. Then each round measures one block of every stage, in random order, so that the drift of a shared machine cancels out and the bars, rates and ratios below come from the same rounds.

# %%
from IPython.display import Markdown

from perfkit import notebook as pk
from perfkit.ladder.catalogue import OPTIMIZATIONS

panel = pk.LadderPanel()

# %% [markdown]
# ## Predict before you run
#
# Which stage will bring the largest speed-up on *this* machine?
#
# What the articles report, measured on their machine. What we calculated from their figures is marked as *derived*; where they contradict each other, see [chapter 19](19_checking_the_articles.ipynb):

# %%
Markdown("\n".join(f"- {o.title}: {o.published}" for o in OPTIMIZATIONS.values() if o.published))

# %% [markdown]
# ## Run
#
# Press *Run* in the panel, or run the second cell: the result appears below the one that you used.

# %%
panel

# %%
panel.run()

# %% [markdown]
# ## Did it help *here*, and why?

# %%
gains = {run.stage: run.speedup("previous") for run in panel.runs if run.speedup("previous")}
best = max(gains, key=lambda name: gains[name].ratio)
Markdown(
    f"The stage with the largest speed-up: **{best}**. With it: "
    f"{gains[best].ratio:.2f} times as fast ({gains[best].low:.2f} to {gains[best].high:.2f}), {gains[best].verdict}."
)

# %% [markdown]
# Before you believe a small difference, look at the row *baseline (again)*, the plain loop once more in another process. Its ratio to the baseline is pure noise: a stage whose gain is not clearly larger has shown nothing. And where a verdict is *disturbed*, other programs used the cores meanwhile: close them and run the ladder again.

# %%
from perfkit.results.run import AGAIN

again = next(
    (run.speedup("baseline") for run in panel.runs if run.stage == AGAIN and run.status == "ok"), None
)
Markdown(
    f"Two equal runs differed by {abs(again.ratio - 1):.1%} here ({again.low:.3f} to {again.high:.3f})."
    if again
    else "There is no A/A row: this preset measures too few rounds for verdicts."
)

# %% [markdown]
# ## A recorded ladder
#
# The workbook comes with a recorded ladder. A recording opens with the same tables and figures as your own runs. Its numbers belong to the machine that it names, so do not compare them with yours.

# %%
recorded = pk.recording("cpu-quick")
Markdown(recorded.sections()[0])

# %%
recorded.table("The ladder")

# %%
recorded.plot("throughput")

# %% [markdown]
# ## The article's ladder, simulated
#
# What would the article's machine show? A model predicts the kernels of its V100, and computes the loader, the copies and the launches of its host. Nothing is measured. Its recording opens in the same panel:

# %%
simulated = pk.LadderPanel(device="recorded:sim-v100")
simulated.run()

# %% [markdown]
# [How a simulated GPU predicts times](../docs/simulation.md) shows it beside the article's own figures. Where the two agree, errors may have cancelled: a model that expects too much of one stage and too little of the next still ends near the right total. So compare the *gain* of each stage, and read its interval. Where that includes 1, the verdict is *too close to predict*.

# %% [markdown]
# ## When the ladder misleads
#
# - Its order is the article's, and arbitrary: a stage that comes after the bottleneck was removed looks better than it would have before. What each is worth on its own, or combined with others, is the subject of chapter 12.
# - Batch size changes the training; the other stages keep it the same, bit for bit or within a tolerance.
# - It says nothing about another model, another machine or another image size. Measure there.
#
# ## What to remember
#
# - A ladder shows where *this* loop on *this* machine gains. Some stages do nothing, some slow it down: drop those.
# - Each stage moves the bottleneck. After each, ask again what the step waits for.
# - The product of honest small steps is large; so is that of wishful ones.
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. In a ladder, stage C gained most. Is C the best optimization?**
#
# <details><summary>Yes, the numbers say so</summary>
#
# **No.** They say what C added after A and B. Before them, the bottleneck was another one.
#
# </details>
#
# <details><summary>No, the first stage always is</summary>
#
# **No.** No place in the order is best in general.
#
# </details>
#
# <details><summary>It is the best at this place of this ladder, here</summary>
#
# **Right.** A ladder credits each stage with what it adds to those below. In another order, C may gain little (chapter 12).
#
# </details>
#
# **2. The verdict of a stage is *no measurable difference*. What does that mean?**
#
# <details><summary>The stage has no effect</summary>
#
# **No.** Absence of evidence: a small effect may be hidden in the noise.
#
# </details>
#
# <details><summary>An effect, if there is one, is smaller than this measurement can show</summary>
#
# **Right.** The text says how large an effect would have shown. Measuring longer can show smaller ones.
#
# </details>
#
# <details><summary>Something went wrong</summary>
#
# **No.** It is a result like any other, and an important one: do not add complexity for it.
#
# </details>

# %% [markdown]
# ## Exercise
#
# Which stages would you keep on this machine, going by their verdicts? List their names (`run.stage`) in the order of the ladder.

# %% tags=["exercise"]
answer = None  # a list of names

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    faster = [name for name, gain in gains.items() if gain.verdict == "faster"]
    assert answer == faster, (
        f"Keep those with the verdict faster: {len(faster)} of {len(gains)} measured stages"
    )
    print(
        "Right:", ", ".join(faster) or "none. No verdict is faster; to detect smaller effects, measure longer"
    )

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# answer = [name for name, gain in gains.items() if gain.verdict == "faster"]
# ```
#
# Drop the rest: some are neutral, some slow you down, and batch size changes the training.
#
# </details>
#
# ## More switches
#
# Each of these is a stage, too: put it into a ladder, or set its switch for all stages with `settings`.
#
# | stage | switch | question |
# |---|---|---|
# | `batched_fetch` | `batched_fetch` | how much time does loading one sample at a time through PIL cost? |
# | `device_prefetch` | `device_prefetch` | does copying on a side stream hide the copy? |
# | `accumulation` | `accumulation` | what does one optimizer step for several batches save? |
# | `cpu_threads` | `cpu_threads` | do compute threads and loader workers compete for the cores? |
# | `fused_optimizer` | `optimizer_impl` | how much time do many small optimizer kernels cost? |
# | `zero_grad` | `zero_grad_set_to_none` | what would it cost to fill gradients with zeros? |
# | `cudnn_benchmark` | `cudnn_benchmark` | are cuDNN's default algorithms the fastest? |
# | `max_autotune` | `compile_mode` | does a longer search at compile time pay off? |
# | `amp_fp16` | `amp` | is fp16 with gradient scaling faster than bf16? |
#
# ```python
# more = pk.LadderPanel(["data_loading", "batched_fetch"], workload="cifar_resnet18", settings={"uint8_copy": True})
# more.run()
# ```
#
# The workload `photos` does not support `device_resize`; `cifar_resnet18` does. To use a workload of your own, pass `workload="my_module:MyWorkload"`: see chapter 11.

# %% [markdown]
# Back to [00 start here](00_start_here.ipynb)
