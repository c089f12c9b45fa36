# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 · Compile
#
# **What do fused kernels gain, and when is compiling paid back?** *8 minutes. Needs: a C++ compiler on a CPU; Triton and a C compiler on a GPU.*
#
# The gap: between convolutions and products stand small operators: norms, activations, sums. Each reads all of its input from memory and writes all of its output. `torch.compile` captures the model as a graph and *fuses* such chains into single kernels. The host also launches fewer of them.
#
# Compiling takes time in the first step; the panel reports it separately. (On a GPU with less than 16 GB, call `panel.set(batch_size=128)` before you run: then 8 GB are enough.)

# %%
from perfkit import notebook as pk

panel = pk.StagePanel("compile")
panel

# %%
panel.run()

# %%
before, after = panel.runs[:2]
if after.compile_s:
    saved_s = before.step_s.value - after.step_s.value
    steps = f"{after.compile_s / saved_s:,.0f} steps" if saved_s > 0 else "never"
    print(f"compiling took {after.compile_s:.1f} s; paid back after: {steps}")

# %% [markdown]
# **What to expect.** A convolutional net on a CPU: 1.0 to 1.1 times as fast, because convolutions are library calls with or without a compiler. The walk-through's V100: 2,477 → 3,268 samples/s, 1.32 times. The methods slides fuse add + relu, bn + relu and bn + add + relu by hand: about 6% on ResNet-50. If compiling pays back after more steps than your training has, leave it out. Judge by *× previous*: it compares the same rounds, while the rates of two rungs come from different ones.

# %%
pk.recording("sim-v100", "compile")

# %% [markdown]
# ## Look inside
#
# The kernels outside of convolutions, on the simulated V100. Those named *fused* replace norms, activations and sums:

# %%
for rung in ("amp", "compile"):
    view = pk.profile("cifar_resnet18", rung, device="sim:v100", host="article")
    between = [kernel for kernel in view.analysis.kernels if "conv" not in kernel.operator]
    ms = sum(kernel.total_us for kernel in between) / 1e3 / len(view.analysis.steps)
    print(f"{rung}: {ms:.0f} ms a step outside of convolutions, {len(between)} kinds of kernels (simulated)")
view.table("Kernels")

# %% [markdown]
# `TORCH_LOGS=output_code python train.py` prints the generated code: one loop, with values in registers where there were arrays.
#
# Three things spoil a compiled loop. *Graph breaks*: Python that needs a value (`if loss > 1`, `.item()`) splits the graph; `fullgraph=True` turns that into an error that names the line, and makes nothing faster by itself. *New shapes* compile again; `TORCH_LOGS=graph_breaks,recompiles` lists both. *Launch-bound models* need more than fusion: `mode="reduce-overhead"` records CUDA graphs, so that the host launches a whole graph at once.
#
# ## Your line

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
model = model.train()  # edit
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
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% tags=["check"]
if not isinstance(model, torch._dynamo.OptimizedModule):
    print("Your turn: edit the marked line above, and run both cells again.")
else:
    print("Right. %%watch leaves the first two steps out; the first one compiled")

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# model = torch.compile(model.train())
# ```
#
# Compile after `.to(device)` and after changing the memory layout.
#
# </details>

# %% [markdown]
# **Which part of a step can `torch.compile` speed up most?**
#
# <details><summary>Convolutions</summary>
#
# **No.** They are calls of cuDNN or oneDNN either way.
#
# </details>
#
# <details><summary>Chains of element-wise operators</summary>
#
# **Right.** Fused, they read and write memory once.
#
# </details>
#
# <details><summary>The data loader</summary>
#
# **No.** It is not part of the model.
#
# </details>

# %% [markdown]
# ### Puzzle ★★: compile without a break
#
# *About 15 minutes.*

# %%
pk.puzzle("graph_break")


# %%
def gate(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


pk.puzzle("graph_break").check(gate)

# %% [markdown]
# ### Puzzle ★★: compile once, not for each length
#
# *About 20 minutes.*

# %%
pk.puzzle("recompiles")


# %%
def collate(sequences):
    longest = max(len(sequence) for sequence in sequences)
    tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return tokens, torch.arange(longest) < lengths[:, None]


pk.puzzle("recompiles").check(collate)

# %% [markdown]
# ## Keep in mind
#
# - Divide the compile time by the time that a step saves before you keep it.
# - Keep shapes fixed, and the graph whole.
# - Also cheap to try: `torch.optim.SGD(..., fused=True)` (the switch `optimizer_impl`), and `torch.backends.cudnn.benchmark = True` on a GPU.
#
# Next: [08 the whole ladder](08_the_whole_ladder.ipynb)
