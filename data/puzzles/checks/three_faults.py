import torch

from bench import data, network, plain_loop, require, same, waits
from judged import proof, train

batches, made = data(5), []


def make_loader():
    made.append(1)
    return batches


def plain(model, optimizer, make_loader, epochs):
    return [torch.stack(plain_loop(model, optimizer, make_loader())).mean().item() for _ in range(epochs)]


reference = network()
expected = plain(reference, torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9), lambda: batches, 3)


def run(function):
    made.clear()
    model = network()
    passes, updates = [], []
    model.register_forward_pre_hook(lambda _, given: passes.append(len(given[0])))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.register_step_post_hook(lambda *_: updates.append(1))
    return function(model, optimizer, make_loader, 3), model, passes, updates


calls = waits(lambda: run(train))
history, model, passes, updates = run(train)
require(
    len(updates) == 15, f"The optimizer made {len(updates)} steps and should make 15, 5 in each of 3 epochs"
)
require(passes, "The model was never called")
same(
    list(model.parameters()),
    list(reference.parameters()),
    "It trains differently than before: the weights differ",
    rtol=1e-4,
    atol=1e-6,
)
require(
    isinstance(history, list) and all(isinstance(loss, float) for loss in history),
    "Return a list of floats, one for each epoch",
)
same(history, expected, "The mean losses of the epochs are not those of before", rtol=1e-4, atol=1e-5)
faults = []
if len(made) > 1:
    faults.append(f"{len(made)} loaders were made for 3 epochs, each starts its workers")
if len(passes) > 15:
    faults.append(f"the model computed {len(passes)} times for 15 steps")
if len(calls) > 3:
    faults.append(f"the host waits {len(calls)} times in 3 epochs")
require(
    not faults,
    f"{len(faults)} of the three faults {'is' if len(faults) == 1 else 'are'} left: {'; '.join(faults)}",
)
proof(f"one loader, 15 passes for 15 steps, {len(calls)} waits in 3 epochs")
