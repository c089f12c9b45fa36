import torch
from torch import nn
from torch.nn import functional as F

from bench import data, require, same, train
from judged import proof, train_step


class Spy(torch.amp.GradScaler):
    calls = []

    def scale(self, outputs):
        self.calls.append("scale")
        return super().scale(outputs)

    def unscale_(self, optimizer):
        self.calls.append("unscale_")
        return super().unscale_(optimizer)

    def step(self, optimizer, *args, **kwargs):
        self.calls.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, *args):
        self.calls.append("update")
        return super().update(*args)


kinds, norms = [], []
scaler = Spy("cpu", init_scale=1024.0)


def loop(model, optimizer, batches):
    model.register_forward_hook(lambda *all: kinds.append(all[2].dtype))
    optimizer.register_step_pre_hook(
        lambda optimizer, *_: norms.append(
            torch.stack([w.grad.norm() for w in model.parameters()]).norm().item()
        )
    )
    for inputs, targets in batches:
        loss = train_step(model, optimizer, scaler, inputs * 4, targets)
        require(
            all(w.grad is None for w in model.parameters()),
            "Gradients are left after the step, and would be added to the next ones",
        )


def plain(model, optimizer, batches):
    for inputs, targets in batches:
        F.cross_entropy(model(inputs * 4), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


batches = data(4)
sgd = lambda weights: torch.optim.SGD(weights, lr=0.1)
own, reference = train(loop, batches, optimizer=sgd), train(plain, batches, optimizer=sgd)
require(kinds, "The model was never called")
require(torch.float32 not in kinds, "The model computes in float32: the forward pass is not under autocast")
require(
    torch.bfloat16 not in kinds,
    "The model computes in bfloat16, which needs no scaler: the task says float16",
)
one = Spy.calls[: len(Spy.calls) // 4]
require(
    "scale" in one, "The loss is not scaled before the backward pass: small gradients become 0 in float16"
)
require(
    "step" in one, "The optimizer steps without the scaler: gradients are still scaled, and may be infinite"
)
require(
    "unscale_" in one and one.index("unscale_") < one.index("step"),
    "The gradients are clipped while they are scaled: `scaler.unscale_(optimizer)` has to come first",
)
require("update" in one, "The scaler never adapts its scale: `scaler.update()` is missing")
require(
    max(norms) < 1.01,
    f"The optimizer got gradients with a norm of {max(norms):.2f}: clip them to 1, after `unscale_`",
)
require(own.updates == 4, f"The optimizer made {own.updates} steps and should make 4")
same(
    own.weights,
    reference.weights,
    "It trains differently than in float32, by more than float16 explains",
    rtol=2e-2,
    atol=1.5e-2,
)
proof("the model computes in float16; the scaler was asked " + ", ".join(one))
