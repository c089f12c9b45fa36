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
# The gap: by now the device is busy, but with slow kernels. The walk-through's kernel view showed Tensor Core time 0%: the fastest units of the GPU stood still. They multiply matrices in 16 bits. *Autocast* runs products and convolutions in 16 bits and keeps the loss, reductions and the statistics of norms in float32.
#
# Convolution kernels also like another memory layout, NHWC (`channels_last`), so that rung comes first:

# %%
from perfkit import notebook as pk

layout = pk.StagePanel("channels_last")
layout.run()

# %%
panel = pk.StagePanel("amp")
panel

# %%
panel.run()

# %% [markdown]
# **What to expect.** `channels_last`: 1.05 to 1.25 times on a CPU. AMP: without bf16 instructions a CPU casts and gains nothing: press *Drop*. With AMX, or with AVX512-BF16 as on the recorded CPU, it is faster where convolutions dominate, and only if the loop lets it be.
#
# On the recorded CPU, *computing alone* hardly gains, yet the loop is 1.3 times as fast. The machine has two cores, and one thread in bf16 computes as fast as two in float32. So here AMP also sets `cpu_threads=1`, which leaves the other core to the worker. Before, every kernel waited at its end for the thread whose core the worker had taken; computing alone has no worker, and does not show it. **A ceiling shows what the device can do, not what the loop gets**: believe the loop.
#
# On the walk-through's V100: 1,670 → 2,477 samples/s, and Tensor Core time 0 → 26.3%. That step also doubled the batch to 1,024, because 16-bit activations leave memory for it, so nobody can say how much AMP alone gave. Utilisation *fell* a little: the kernels were shorter.

# %%
pk.recording("sim-v100", "amp")

# %% [markdown]
# The kernel view of the simulated V100, before and after:

# %%
for rung in ("uint8_copy", "amp"):
    view = pk.profile("cifar_resnet18", rung, device="sim:v100", host="article")
    share = view.analysis.tensor_core["yes"]
    print(f"{rung}: {share:.0%} of the kernels' time on Tensor Cores (simulated)")
view.table("Kernels")

# %% [markdown]
# (The walk-through's 26.3% is lower: the simulation expects Tensor Cores for more of its convolutions than the V100 used.)
#
# ## Which 16 bits, and is it the same training?
#
# | type | range | use |
# |---|---|---|
# | bf16 | that of float32 | Ampere and newer GPUs, CPUs; no scaling needed |
# | fp16 | small numbers become 0 | Volta, Turing; with `torch.amp.GradScaler` (the walk-through left it out) |
# | TF32 | that of float32, shorter mantissa | float32 convolutions on Ampere and newer, by default; for products, `torch.set_float32_matmul_precision("high")` (the switch `fp32_precision`) |
#
# Tensor Cores want sizes in multiples of 8: [12](12_kernels_and_shapes.ipynb). Sums inside a 16-bit product are normally kept in float32; by default PyTorch allows kernels to round some partial sums to 16 bits. The panel compares losses and outputs with strict float32. Compare your final accuracy once, too; a part that trains badly can stay in float32 under `torch.autocast(device, enabled=False)`.
#
# ## Your line
#
# Compute forward and loss under autocast in bfloat16.

# %%
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from perfkit.workloads.files import photo_folder

photos = photo_folder(256)  # JPEG files, made once
# %load_ext perfkit

# %% tags=["exercise"]
# %%watch
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
layers = []
shapes = [(3, 16, 2), (16, 32, 1), (32, 32, 2), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
for inputs, outputs, stride in shapes:
    layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 8)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
transform = T.Compose([T.Resize(96), T.CenterCrop(96), T.ToTensor(), T.Normalize(0.5, 0.5)])
dataset = ImageFolder(photos, transform)
loader = DataLoader(
    dataset,
    shuffle=True,
    drop_last=True,
    batch_size=32,
    num_workers=1,
)
for images, labels in loader:
    images, labels = images.to(device), labels.to(device)
    logits = model(images)  # edit
    loss = nn.functional.cross_entropy(logits, labels)  # edit
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% tags=["check"]
if logits.dtype == torch.float32:
    print("Your turn: edit the marked lines above, and run both cells again.")
else:
    assert logits.dtype == torch.bfloat16, f"The model computed in {logits.dtype}"
    assert loss.dtype == torch.float32, "Put the loss under autocast as well: it then computes in float32"
    assert model[0].weight.dtype == torch.float32, "The weights stay float32: do not convert the model"
    print("Right: 16-bit products, float32 weights and loss")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# with torch.autocast(device, torch.bfloat16):
#     logits = model(images)
#     loss = nn.functional.cross_entropy(logits, labels)
# ```
#
# Backward stays outside: it uses the types that forward used.
#
# </details>

# %% [markdown]
# **For which layer can autocast *cost* time even on a GPU with Tensor Cores?**
#
# <details><summary>A large matrix product</summary>
#
# **No.** For each number that is cast, the product does about 2n operations. If n is large, casting is nothing beside them.
#
# </details>
#
# <details><summary>A tiny linear layer</summary>
#
# **Right.** If n is small, casting costs more than the product saves.
#
# </details>
#
# <details><summary>A batch norm</summary>
#
# **No.** Its statistics stay in float32, with little to cast.
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
# ## Keep in mind
#
# - Try 16 bits when the device is the bottleneck and its matrix units stand still.
# - Use bf16 where it is fast, fp16 with a scaler elsewhere.
#
# Next: [07 compile](07_compile.ipynb)
