import torch
from torch.nn import functional as F

from bench import require, same, waits
from judged import masked_loss, proof

logits, targets, mask = torch.randn(40, 7), torch.randint(7, (40,)), torch.rand(40) < 0.6


def both(function):
    given = logits.clone().requires_grad_()
    loss = function(given, targets, mask)
    require(
        isinstance(loss, torch.Tensor) and loss.requires_grad,
        "Return the loss as a tensor that leads back to the logits",
    )
    loss.backward()
    return loss.detach(), given.grad


(loss, gradient), expected = both(masked_loss), both(lambda a, b, c: F.cross_entropy(a[c], b[c]))
same(
    loss,
    expected[0],
    "The loss is not the mean over the real tokens: what is the sum divided by?",
    rtol=1e-4,
    atol=1e-5,
)
same(gradient, expected[1], "The loss is right, its gradient is not", rtol=1e-4, atol=1e-5)
calls = waits(lambda: masked_loss(logits, targets, mask))
require(
    not calls, f"The host waits for the device, by {', '.join(f'`{call}`' for call in sorted(set(calls)))}"
)
proof("no call that waits; loss and gradient are those of `logits[mask]`")
