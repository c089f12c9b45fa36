import torch

from bench import data, network, plain_loop, require, same, trains_the_same, waits
from judged import proof, train

batches = data(6)
own = trains_the_same(train, batches)
model = network()
losses = plain_loop(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), batches)
require(isinstance(own.result, float), "Return the mean loss as a float, not as a tensor")
same(
    own.result,
    torch.stack(losses).mean().item(),
    "The mean loss is not that of all steps",
    rtol=1e-4,
    atol=1e-5,
)
model = network()
calls = waits(lambda: train(model, torch.optim.SGD(model.parameters(), lr=0.1), iter(batches)))
require(
    len(calls) <= 1,
    f"In 6 steps the host waits {len(calls)} times, by {', '.join(f'`{call}`' for call in sorted(set(calls)))}: once, after the loop, is enough",
)
proof(f"in 6 steps the host waits {len(calls)} time")
