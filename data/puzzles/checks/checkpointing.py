import torch
from torch import nn

from bench import require, same, saved_bytes
from judged import forward, proof


def make():
    torch.manual_seed(3)
    return nn.ModuleList(
        nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 32))
        for _ in range(6)
    )


def plain(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def run(function):
    blocks, x, calls, outputs = make(), torch.linspace(-1, 1, 64 * 32).view(64, 32).requires_grad_(), [], []
    for number, block in enumerate(blocks):
        block[0].register_forward_pre_hook(lambda *_, number=number: calls.append(number))
    kept = saved_bytes(lambda: outputs.append(function(blocks, x)))
    forward_calls = list(calls)
    require(
        isinstance(outputs[0], torch.Tensor) and outputs[0].requires_grad,
        "The result does not lead back to the weights: nothing can be learnt from it",
    )
    outputs[0].square().mean().backward()
    return outputs[0].detach(), [x.grad, *(w.grad for w in blocks.parameters())], kept, forward_calls, calls


result, gradients, kept, first, calls = run(forward)
expected, plain_gradients, plain_kept, *_ = run(plain)
same(result, expected, "The result is not that of all blocks in their order", rtol=1e-4, atol=1e-6)
require(all(g is not None for g in gradients), "Some weights got no gradient")
same(
    gradients, plain_gradients, "The gradients are not those of the plain forward pass", rtol=1e-4, atol=1e-7
)
require(
    len(calls) == 12,
    f"The blocks were computed {len(calls)} times in all; each of the 6 has to be computed twice, the second time in the backward pass",
)
order = calls[6:]
require(
    order == [5, 4, 3, 2, 1, 0],
    "The backward pass computes all blocks again at once, which needs all of the memory: checkpoint each block",
)
require(
    kept < 0.5 * plain_kept, f"Autograd keeps {kept:,} bytes, without checkpoints {plain_kept:,}: too much"
)
proof(
    f"autograd keeps {kept:,} bytes instead of {plain_kept:,}; each block is computed twice, and the gradients are the same"
)
