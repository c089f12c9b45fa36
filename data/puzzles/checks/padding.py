import torch
from torch import nn
from torch.nn import functional as F

from bench import require, same
from judged import pad_head, proof

for real in (1003, 250, 64):
    head = nn.Linear(32, real)
    inputs, targets = torch.randn(5, 32) * 3, torch.randint(real, (5,))
    padded, size = pad_head(head), -(-real // 8) * 8
    require(
        isinstance(padded, nn.Linear) and padded.in_features == 32, "Return an nn.Linear with the same inputs"
    )
    require(
        tuple(padded.weight.shape) == (padded.out_features, 32),
        "`out_features` is not the size of the weight",
    )
    require(padded.out_features >= real, f"{real} classes became {padded.out_features}: some are lost")
    require(
        padded.out_features == size,
        f"{real} classes became {padded.out_features} and should become {size}, the next multiple of 8",
    )
    same(
        padded(inputs)[:, :real],
        head(inputs),
        "The outputs of the real classes have changed",
        rtol=1e-4,
        atol=1e-5,
    )
    own, expected = (F.cross_entropy(layer(inputs), targets) for layer in (padded, head))
    same(
        own,
        expected,
        "The cross-entropy has changed: the additional classes take a part of the probability",
        rtol=1e-4,
        atol=1e-5,
    )
    own.backward()
    expected.backward()
    same(
        padded.weight.grad[:real],
        head.weight.grad,
        "The gradient of the real classes has changed",
        rtol=1e-3,
        atol=1e-5,
    )
proof("1003 classes became 1008, 250 became 256, and 64 stayed; outputs, loss and gradient are the same")
