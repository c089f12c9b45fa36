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
# **Is 16-bit arithmetic faster here?** *13 minutes. Needs: nothing special; to gain, a GPU with Tensor Cores (Volta or newer), or AVX512-BF16 or AMX.*
#
# *After this you can turn on mixed precision correctly, and say which of its parts made your loop faster.*
#
# The walk-through's V100, simulated with the loss scaler that the walk-through left out (orange: the host waits for it):

# %%
from torch import nn

from perfkit import notebook as pk

pk.lanes("sim-v100-amp-alone")

# %% [markdown]
# (The simulation predicts 1.82 times, and overstates it: the walk-through gained 1.48 times, and had doubled the batch.)
#
# The gaps are short: the device is busy, but its kernels are slow. The walk-through's kernel view showed Tensor Core time 0%. *Autocast* runs matrix products and convolutions in 16 bits. On a GPU, softmax, losses, sums and layer norm run in float32, most other operators in the type of their input.

# %% [markdown]
# ## First the layout
#
# Convolution kernels prefer the memory layout NHWC (`channels_last`). Expect 1.05 to 1.25 times on a CPU.

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
# Without AVX512-BF16 or AMX, a CPU falls back to slow kernels: expect 0.1 to 0.9 times. With either, kernels get shorter, but the loop may not. The recording shows why:

# %%
runs = {run.stage: run for run in pk.recording("cpu-quick").found}
for stage in ("kept_so_far", "amp", "cpu_threads", "amp_fewer_threads"):
    run = runs[stage]
    alone, loop = run.ceiling_samples_per_s, run.samples_per_s.value
    print(f"{run.title:26} compute only {alone:4.0f} samples/s, with the worker {loop:4.0f}")

# %% [markdown]
# Compare the columns. PyTorch splits each kernel among threads, and the kernel ends with the last of them. The worker keeps taking one thread's core, and the other threads wait for that one. The shorter the kernels, the larger the share of the step that is lost. One fewer thread (`cpu_threads`) computes more slowly, but leaves the worker a core. So on a CPU press *Drop* above, and try both at once:

# %%
both = pk.StagePanel("amp_fewer_threads")
if panel.runs[0].device == "cpu":
    both.run()

# %% [markdown]
# The simulated V100, with only the precision changed:

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
# (The walk-through reports 26.3%: here, too, the simulation is optimistic.)
#
# ## Which 16 bits?
#
# *bf16* has the range of float32. *fp16* is more precise, but small gradients become 0 and values above 65,504 infinite. So real training in fp16 multiplies the loss before backward (`GradScaler`), and skips steps that overflow. GPUs before Ampere, such as V100 and T4, have no bf16 units. *TF32* shortens the mantissa of float32 in products, on Ampere and newer: in convolutions by default, in matrix products with `torch.set_float32_matmul_precision("high")`.
#
# Sums inside a 16-bit product are normally kept in float32. Compare your final accuracy once. A part that trains badly can stay in float32: `with torch.autocast(device, enabled=False): y = part(x.float())`. With a fused optimizer the host doesn't wait for the scaler.

# %% [markdown]
# ## Your line
#
# First the layout:

# %%
pk.my_train(budget_s=120)

# %% [markdown]
# Then put forward and loss under autocast: in bfloat16 on a CPU or where `torch.cuda.is_bf16_supported(including_emulation=False)`, else (T4, V100) in float16 with a scaler. On a CPU, set one fewer thread, too.

# %%
pk.my_train()

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# model = small_net(classes=8).to(device, memory_format=torch.channels_last)
#
# torch.set_num_threads(max(1, torch.get_num_threads() - 1))
#
# with torch.autocast(device, torch.bfloat16):
#     loss = nn.functional.cross_entropy(model(images), labels)
# ```
#
# Backward stays outside: it uses the types of forward. The weights stay float32.
#
# </details>
#
# <details><summary>Answer for a T4 or V100</summary>
#
# ```python
# scaler = torch.amp.GradScaler(device)  # before the loop
#
# with torch.autocast(device, torch.float16):
#     loss = nn.functional.cross_entropy(model(images), labels)
# scaler.scale(loss).backward()
# scaler.step(optimizer)
# scaler.update()
# ```
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
# There is no fixed factor. Products on Tensor Cores can be several times as fast, memory-bound operators up to twice, as they move half the bytes; what stays float32 gains nothing.
#
# </details>
#
# **Can autocast cost time even on a GPU with Tensor Cores?**
#
# <details><summary>Answer</summary>
#
# Yes, in tiny layers: each cast is another kernel to launch.
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
