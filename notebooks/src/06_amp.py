# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 06 · Automatic mixed precision
#
# **Are 16-bit products faster here?** *10 minutes. Needs: to be faster, a GPU with Tensor Cores (Volta or newer) or a CPU with bf16 instructions.*
#
# *After this you can turn on mixed precision correctly, and say which of its parts made your loop faster.*
#
# The walk-through's V100, simulated. Only the kernels change:

# %%
from torch import nn

from perfkit import notebook as pk

pk.lanes("sim-v100-amp-alone")

# %% [markdown]
# The gap: by now the device is busy, but with slow kernels. The walk-through's kernel view showed Tensor Core time 0%: the fastest units of the GPU were idle. They multiply small matrices, in 16 bits and a few other types. *Autocast* runs matrix products and convolutions in 16 bits. It keeps losses and the statistics of norms in float32, and everything else runs in the type of its input, which is why activations shrink, too.

# %% [markdown]
# ## First the layout
#
# Convolution kernels prefer another memory layout, NHWC (`channels_last`), so that is measured first. Expect 1.05 to 1.25 times as fast on a CPU.

# %%
layout = pk.StagePanel("channels_last")
layout.run()

# %% [markdown]
# ## Then 16 bits

# %%
panel = pk.StagePanel("amp")
panel

# %%
panel.run()

# %% [markdown]
# **What to expect.** Without bf16 instructions a CPU only casts and gains nothing. With AMX, bf16 is much faster for convolutional models, provided the loader keeps up. With AVX512-BF16 it can go either way: on the recorded CPU it was slower. What does not help gets *Drop*.
#
# On a CPU, the worker keeps interrupting one of the compute threads, and each kernel waits for that thread. In 16 bits kernels are shorter, so this matters more. One thread fewer leaves a core to the worker: the switch `cpu_threads`, a separate stage of the ladder. Does it help here, with and without 16 bits?

# %%
base = panel.runs[0].recipe  # what you have kept
fewer = {"cpu_threads": panel.runs[-1].recipe["cpu_threads"] or 1}
recipes = {"before": base, "fewer threads": base | fewer, "16 bits": base | {"amp": "bf16"}}
recipes["both"] = base | fewer | {"amp": "bf16"}
apart = pk.RecipePanel(recipes)
if panel.runs[0].device == "cpu":
    apart.run()

# %% [markdown]
# On the walk-through's V100: 1,670 → 2,477 samples/s. That step also doubled the batch to 1,024, because 16-bit activations leave memory for it, so nobody can say how much AMP alone gave. Utilisation *fell* a little, because the kernels were shorter.
#
# The kernel view of the simulated V100, with only the precision changed:

# %%
from perfkit.recipe import Recipe

recorded = {run.stage: run.recipe for run in pk.recording("sim-v100").found}
for amp in ("off", "fp16"):
    recipe = Recipe.from_dict(recorded["uint8_copy"] | {"amp": amp})
    view = pk.profile("cifar_resnet18", recipe, device="sim:v100", host="article", preset="paper")
    kernels_ms = sum(kernel.total_us for kernel in view.analysis.kernels) / 1e3 / len(view.analysis.steps)
    print(
        f"amp={amp}: kernels {kernels_ms:.0f} ms a step, Tensor Cores {view.analysis.tensor_core['yes']:.0%} of it"
    )

# %% [markdown]
# (The walk-through saw 26.3%: the simulation puts more of its convolutions on Tensor Cores.)
#
# ## Which 16 bits?
#
# *bf16* has the range of float32 and needs nothing else. *fp16* is more precise, but small gradients become 0 and values above 65,504 become infinite. So the loss is multiplied before backward (`GradScaler`), and a step that overflows is skipped. GPUs before Ampere, such as the V100 and the T4, have no bf16 units. The walk-through left the scaler out; a real training can't. *TF32* shortens float32 on Ampere and newer, in convolutions by default, in matrix products with `torch.set_float32_matmul_precision("high")`.
#
# Sums inside a 16-bit product are normally kept in float32. The panel compares losses and outputs with strict float32. Compare your final accuracy once, too: a part that trains badly can stay in float32 under `torch.autocast(device, enabled=False)`.

# %% [markdown]
# ## Your line
#
# Two edits of `my_train.py`, each with its own verdict: first the layout of the model, then forward and loss under autocast in bfloat16.

# %%
pk.my_train()

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# model = small_net(classes=8).to(device, memory_format=torch.channels_last)
#
# with torch.autocast(device, torch.bfloat16):
#     loss = nn.functional.cross_entropy(model(images), labels)
# ```
#
# Backward stays outside: it uses the types that forward used. The weights stay float32: do not convert the model.
#
# </details>

# %% [markdown]
# ### Puzzle ★★: autocast with a scaler
#
# *About 20 minutes.*

# %%
pk.puzzle("scaler")


# %%
def train_step(model, optimizer, scaler, inputs, targets):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


pk.puzzle("scaler").check(train_step)

# %% [markdown]
# ## Check yourself
#
# **Half the bits. Twice the speed?**
#
# <details><summary>Answer</summary>
#
# Only on units made for 16 bits, and only for products and convolutions. Elsewhere half the bytes help where memory is the limit.
#
# </details>
#
# **Can autocast cost time even on a GPU with Tensor Cores?**
#
# <details><summary>Answer</summary>
#
# Yes, in tiny layers. A layer with *n* outputs does about 2*n* operations per input number it casts. With small *n*, casting costs more than the product saves.
#
# </details>
#
# **The walk-through reports +48% for AMP. What is wrong with that?**
#
# <details><summary>Answer</summary>
#
# Two things changed, precision and batch. The comparison is *confounded*.
#
# </details>
#
# Next: [07 compile](07_compile.ipynb)
