# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 · torch.compile
#
# *About 1 to 4 minutes at the preset `quick` on two cores; at `paper` on a GPU at most 4 (planned, not timed). Needs: on a CPU, a C++ compiler; on a GPU, Triton, a C compiler and Python's headers.*
#
# `torch.compile` (the switch `compile`) captures the model as a graph and generates fused kernels for it: less memory traffic, fewer kernel launches, less Python. With `compile_mode` it also searches for faster kernels while it compiles.
#
# A small transformer trains here (`tiny_gpt`). Between its matrix products are element-wise operators: sums, norms, activations. Run one by one, each of them reads all of its input from memory and writes all of its output there. Fused into one loop, a chain of them reads and writes once.

# %%
import re

import torch
from IPython.display import Markdown
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

from perfkit import notebook as pk

name = "tiny_gpt"
panel = pk.StagePanel("compile", workload=name)

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
# The proof in the panel shows whether the model is compiled. It is compiled once, in the first step. That time is reported separately and never averaged into the step time:

# %%
before, after = panel.runs[0], panel.runs[1]
Markdown(
    f"Compiling took {after.compile_s:.1f} s; a step takes {before.step_s.value * 1e3:.1f} ms before "
    f"and {after.step_s.value * 1e3:.1f} ms after."
    if after.compile_s is not None
    else f"Not measured here: {after.reason or 'a simulation does not compile'}."
)

# %% [markdown]
# A real model is a mixture. Convolutions and matrix products stay library calls, and what is fused is between them: `pk.StagePanel("compile", workload="tiny_gpt")` has norms, GELUs and sums between its products, and `workload="photos"` batch norms and ReLUs between its convolutions.
#
# ## The generated code
#
# This is what the compiler (TorchInductor) writes for such a chain on a CPU: C++, in which one loop does every operator, and the values in between stay in registers (`tmp0`, `tmp1` …). On a GPU it writes Triton. `TORCH_LOGS=output_code python train.py` prints the code of any script:


# %%
def chain(hidden):
    """Three rounds of the chain that the workload trains."""
    for _ in range(3):
        hidden = torch.relu(hidden) * 0.9 + 0.1
    return hidden


config.compile_threads = 1  # no pool of compiling processes beside this notebook
try:
    code = run_and_get_code(torch.compile(chain), torch.randn(64, 1024))[1][0]
    kernel = re.search(r"extern \"C\".*?(?=\n\s*'{3})", code, re.DOTALL)
    shown = f"```cpp\n{kernel[0] if kernel else code}\n```"
except Exception as problem:  # most often there is no C++ compiler
    shown = f"n/a: {type(problem).__name__}. `perfkit doctor` says what compiling needs here"
Markdown(shown)

# %% [markdown]
# ## Without a compiler
#
# Two other switches act on kernels. `optimizer_impl` chooses how the optimizer updates the parameters (`fused`: many of them in one kernel). `cudnn_benchmark` lets cuDNN time its convolution algorithms and keep the fastest. For example:

# %%
pk.StagePanel("fused_optimizer").diff()

# %% [markdown]
# ## The same on a simulated V100
#
# PyTorch's own compiler decides which operations would be fused for a GPU; the model predicts the kernels that result. The time that compiling takes is not simulated. This is the article's machine, as a recorded simulation (nothing is measured: see [00](00_start_here.ipynb)):

# %%
simulated = pk.StagePanel("compile", device="recorded:sim-v100")
simulated.run()

# %% [markdown]
# ## When it does not help
#
# - Convolutions and large matrix products are library calls, compiled or not; only the operations between them are fused.
# - If the step waits for data, it waits as long as before.
# - A short training never earns the compile time back.
# - Python that cannot be captured breaks the graph: what lies between the parts runs uncompiled. `torch.compile(model, fullgraph=True)` raises an error there instead, which names the line.
# - A second input shape triggers another compilation. By default, its result handles dynamic shapes, so later shapes mostly reuse it; it can be slower than code compiled for one fixed shape.
#
# ## What to remember
#
# - Compiling pays for operations between the large products: it saves memory traffic and launches, not arithmetic.
# - Keep the compile time out of the step time, and ask after how many steps it is earned back.
# - Keep shapes fixed and the graph whole; `TORCH_LOGS=graph_breaks,recompiles` tells you when they are not.
#
# ## Check yourself
#
# Open an answer: it says whether it is right, and why.

# %% [markdown]
# **1. Which part of a step can `torch.compile` speed up most?**
#
# <details><summary>Chains of element-wise operators</summary>
#
# **Right.** Fused into one kernel, they read and write memory once. Large matrix products and convolutions are library calls either way.
#
# </details>
#
# <details><summary>Convolutions</summary>
#
# **No.** They are already calls of cuDNN (on a GPU), with or without the compiler.
#
# </details>
#
# <details><summary>The data loader</summary>
#
# **No.** It is not part of the compiled model.
#
# </details>
#
# **2. What does `fullgraph=True` do?**
#
# <details><summary>It makes larger kernels</summary>
#
# **No.** The same graph gives the same kernels.
#
# </details>
#
# <details><summary>It turns a graph break into an error</summary>
#
# **Right.** Nothing becomes faster by it. It shows at once the line that splits the graph, for example a `print` or an `.item()`.
#
# </details>
#
# <details><summary>It compiles the whole training step, with loss and optimizer</summary>
#
# **No.** It concerns what you pass to `torch.compile`, here the model.
#
# </details>

# %% [markdown]
# ## Exercise
#
# After how many steps has compiling paid for itself here? If the compiled step is not shorter, the answer is `float("inf")`.

# %% tags=["exercise"]
answer = None  # a number of steps, computed from before and after

# %% tags=["check"]
if answer is None:
    print("Your turn: replace None in the cell above.")
else:
    saved_s = before.step_s.value - (after.step_s or before.step_s).value
    pays = saved_s > 0
    assert pays or answer == float("inf"), "The compiled step is not shorter here: compiling never pays off"
    assert not pays or abs(answer * saved_s - after.compile_s) < 0.05 * after.compile_s, (
        "Steps × time saved per step = compile time"
    )
    print(f"Right: after about {answer:,.0f} steps" if pays else "Right: never, and that is the result")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# saved_s = before.step_s.value - after.step_s.value if after.status == "ok" else 0
# answer = after.compile_s / saved_s if saved_s > 0 else float("inf")
# ```
#
# The compile time divided by the time that one step saves. Compare it with the number of steps in your own training.
#
# </details>

# %% [markdown]
# Next: [08 the whole ladder](08_the_whole_ladder.ipynb)
