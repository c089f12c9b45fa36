import torch
from torch import nn

from bench import data, plain_loop, require, same, train
from judged import make_optimizer, proof


def make():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))


def reference(parameters):
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if (p.dim() >= 2) == decays], "weight_decay": 0.1 * decays}
        for decays in (True, False)
    ]
    return torch.optim.AdamW(groups, lr=3e-4, foreach=False)


model = make()
optimizer = make_optimizer(model)
require(isinstance(optimizer, torch.optim.AdamW), f"This is {type(optimizer).__name__}, and should be AdamW")
held = [id(p) for group in optimizer.param_groups for p in group["params"]]
require(
    sorted(held) == sorted(map(id, model.parameters())),
    "Not every parameter of the model is in the optimizer, once",
)
require(
    all(group["fused"] for group in optimizer.param_groups), "The optimizer is not the fused implementation"
)
wrong = [
    p
    for group in optimizer.param_groups
    for p in group["params"]
    if abs(group["weight_decay"] - 0.1 * (p.dim() >= 2)) > 1e-9
]
require(
    not wrong,
    f"{len(wrong)} parameters have the wrong weight decay: 0.1 for matrices, 0 for those with one dimension",
)
batches = data(3)
own = train(plain_loop, batches, model=model, optimizer=lambda _: optimizer)
expected = train(plain_loop, batches, model=make(), optimizer=reference)
same(
    own.weights,
    expected.weights,
    "After three steps the weights differ from those of plain AdamW with these settings",
    rtol=1e-4,
    atol=1e-6,
)
proof(f"fused AdamW, {len(optimizer.param_groups)} groups; three steps give the weights of the plain one")
