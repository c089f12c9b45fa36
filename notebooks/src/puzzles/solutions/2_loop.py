# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions: the loop
#
# Of each puzzle two answers that pass, and three that do not, with a part of what `check` says of them. Needs: nothing; reading takes 5 minutes. The puzzles: [the loop](../2_loop.ipynb).

# %%
import contextlib
import time

import torch
import torch.nn.functional as F

# %% [markdown]
# ## `timing`


# %% tags=["timing", "right"]
def seconds_per_step(step, steps):
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


# %% tags=["timing", "right"]
def seconds_per_step(step, steps):
    step()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(steps):
        step()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1000 / steps


# %% tags=["timing", "wrong"]
# says: before the device had finished
def seconds_per_step(step, steps):
    step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


# %% tags=["timing", "wrong"]
# says: still works on the warm-up
def seconds_per_step(step, steps):
    for _ in range(3):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


# %% tags=["timing", "wrong"]
# says: the first step
def seconds_per_step(step, steps):
    start = time.perf_counter()
    for _ in range(steps + 1):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / (steps + 1)


# %% [markdown]
# ## `waits`


# %% tags=["waits", "right"]
def train(model, optimizer, batches):
    losses = []
    for inputs, targets in batches:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


# %% tags=["waits", "right"]
def train(model, optimizer, batches):
    total, count = torch.zeros(()), 0
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        count += 1
    return float(total / count)


# %% tags=["waits", "wrong"]
# says: the host waits 6 times
def train(model, optimizer, batches):
    total, count = 0.0, 0
    for inputs, targets in batches:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += float(loss)
        count += 1
    return total / count


# %% tags=["waits", "wrong"]
# says: the host waits 7 times
def train(model, optimizer, batches):
    losses = []
    for inputs, targets in batches:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    return torch.stack(losses).mean().item()


# %% tags=["waits", "wrong"]
# says: not that of all steps
def train(model, optimizer, batches):
    for inputs, targets in batches:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


# %% [markdown]
# ## `mask`


# %% tags=["mask", "right"]
def masked_loss(logits, targets, mask):
    losses = F.cross_entropy(logits, targets, reduction="none")
    return (losses * mask).sum() / mask.sum()


# %% tags=["mask", "right"]
def masked_loss(logits, targets, mask):
    return F.cross_entropy(logits, torch.where(mask, targets, -100), ignore_index=-100)


# %% tags=["mask", "wrong"]
# says: The host waits
def masked_loss(logits, targets, mask):
    real = mask.nonzero().squeeze(1)
    return F.cross_entropy(logits.index_select(0, real), targets.index_select(0, real))


# %% tags=["mask", "wrong"]
# says: what is the sum divided by
def masked_loss(logits, targets, mask):
    return (F.cross_entropy(logits, targets, reduction="none") * mask).mean()


# %% tags=["mask", "wrong"]
# says: by `item`
def masked_loss(logits, targets, mask):
    losses = F.cross_entropy(logits, targets, reduction="none")
    return (losses * mask).sum() / mask.sum().item()


# %% [markdown]
# ## `log_every`


# %% tags=["log_every", "right"]
def train(model, optimizer, batches, every, log):
    for step, (inputs, targets) in enumerate(batches, 1):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0:
            log(step, loss.item())


# %% tags=["log_every", "right"]
def train(model, optimizer, batches, every, log):
    due = every
    for step, (inputs, targets) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if step == due:
            due += every
            log(step, float(loss.detach()))


# %% tags=["log_every", "wrong"]
# says: In 10 steps the host waits 10 times
def train(model, optimizer, batches, every, log):
    for step, (inputs, targets) in enumerate(batches, 1):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        number = loss.item()
        if step % every == 0:
            log(step, number)


# %% tags=["log_every", "wrong"]
# says: should be 4 and 8
def train(model, optimizer, batches, every, log):
    for step, (inputs, targets) in enumerate(batches):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0:
            log(step, loss.item())


# %% tags=["log_every", "wrong"]
# says: as a float
def train(model, optimizer, batches, every, log):
    for step, (inputs, targets) in enumerate(batches, 1):
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0:
            log(step, loss)


# %% [markdown]
# ## `zero_grad`


# %% tags=["zero_grad", "right"]
def train_step(model, optimizer, inputs, targets):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# %% tags=["zero_grad", "right"]
def train_step(model, optimizer, inputs, targets):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
    return loss.detach()


# %% tags=["zero_grad", "wrong"]
# says: all zeros
def train_step(model, optimizer, inputs, targets):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss.detach()


# %% tags=["zero_grad", "wrong"]
# says: Nothing was learnt
def train_step(model, optimizer, inputs, targets):
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    return loss.detach()


# %% tags=["zero_grad", "wrong"]
# says: added to the next ones
def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


# %% [markdown]
# ## `ranges`


# %% tags=["ranges", "right"]
def train_step(model, optimizer, batches):
    with torch.profiler.record_function("data"):
        inputs, targets = next(batches)
    with torch.profiler.record_function("forward"):
        loss = F.cross_entropy(model(inputs), targets)
    with torch.profiler.record_function("backward"):
        loss.backward()
    with torch.profiler.record_function("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


# %% tags=["ranges", "right"]
@contextlib.contextmanager
def named(name):
    with torch.autograd.profiler.record_function(name):
        yield


def train_step(model, optimizer, batches):
    with named("data"):
        inputs, targets = next(batches)
    with named("forward"):
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, targets)
    with named("backward"):
        loss.backward()
    with named("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


# %% tags=["ranges", "wrong"]
# says: `data` was opened 0 times
def train_step(model, optimizer, batches):
    inputs, targets = next(batches)
    with torch.profiler.record_function("forward"):
        loss = F.cross_entropy(model(inputs), targets)
    with torch.profiler.record_function("backward"):
        loss.backward()
    with torch.profiler.record_function("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


# %% tags=["ranges", "wrong"]
# says: The loss is not in the range
def train_step(model, optimizer, batches):
    with torch.profiler.record_function("data"):
        inputs, targets = next(batches)
    with torch.profiler.record_function("forward"):
        outputs = model(inputs)
    with torch.profiler.record_function("backward"):
        loss = F.cross_entropy(outputs, targets)
        loss.backward()
    with torch.profiler.record_function("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


# %% tags=["ranges", "wrong"]
# says: is not in the range
def train_step(model, optimizer, batches):
    for name in ("data", "forward", "backward", "optimizer"):
        with torch.profiler.record_function(name):
            pass
    inputs, targets = next(batches)
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# %% [markdown]
# ## `profiler`


# %% tags=["profiler", "right"]
def profile(step, steps):
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    with torch.profiler.profile(schedule=schedule) as profiler:
        for _ in range(steps):
            step()
            profiler.step()
    return profiler


# %% tags=["profiler", "right"]
def profile(step, steps):
    schedule = torch.profiler.schedule(skip_first=1, wait=0, warmup=1, active=3, repeat=1)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule)
    profiler.start()
    for _ in range(steps):
        step()
        profiler.step()
    profiler.stop()
    return profiler


# %% tags=["profiler", "wrong"]
# says: No step is marked
def profile(step, steps):
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    with torch.profiler.profile(schedule=schedule) as profiler:
        for _ in range(steps):
            step()
    return profiler


# %% tags=["profiler", "wrong"]
# says: should be 3, 4 and 5
def profile(step, steps):
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    with torch.profiler.profile(schedule=schedule) as profiler:
        for _ in range(steps):
            step()
            profiler.step()
    return profiler


# %% tags=["profiler", "wrong"]
# says: training goes on
def profile(step, steps):
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    with torch.profiler.profile(schedule=schedule) as profiler:
        for _ in range(5):
            step()
            profiler.step()
    return profiler


# %% [markdown]
# ## `three_faults`


# %% tags=["three_faults", "right"]
def train(model, optimizer, make_loader, epochs):
    loader, history = make_loader(), []
    for _ in range(epochs):
        losses = []
        for inputs, targets in loader:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        history.append(torch.stack(losses).mean().item())
    return history


# %% tags=["three_faults", "right"]
def train(model, optimizer, make_loader, epochs):
    loader, means = make_loader(), []
    for _ in range(epochs):
        total, count = 0, 0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total, count = total + loss.detach(), count + 1
        means.append(total / count)
    return torch.stack(means).tolist()


# %% tags=["three_faults", "wrong"]
# says: 3 loaders were made
def train(model, optimizer, make_loader, epochs):
    history = []
    for _ in range(epochs):
        losses = []
        for inputs, targets in make_loader():
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        history.append(torch.stack(losses).mean().item())
    return history


# %% tags=["three_faults", "wrong"]
# says: 1 of the three faults is left: the host waits
def train(model, optimizer, make_loader, epochs):
    loader, history = make_loader(), []
    for _ in range(epochs):
        total, count = 0.0, 0
        for inputs, targets in loader:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total, count = total + loss.item(), count + 1
        history.append(total / count)
    return history


# %% tags=["three_faults", "wrong"]
# says: the model computed 30 times
def train(model, optimizer, make_loader, epochs):
    loader, history = make_loader(), []
    for _ in range(epochs):
        losses, right = [], 0
        for inputs, targets in loader:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                right = right + (model(inputs).argmax(1) == targets).sum()
            losses.append(loss.detach())
        history.append(torch.stack(losses).mean().item())
    return history
