"""Answers to puzzles that do not pass, each with a part of what the learner is told.

Cells as in `notebooks/src/puzzles/solutions.py`, whose first cell of code runs before each.
"""


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


# %% tags=["loader", "wrong"]
# says: fetches the samples itself
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=0)


# %% tags=["loader", "wrong"]
# says: fetched by different processes
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=2)


# %% tags=["infinite_sampler", "wrong"]
# says: repeat the same order
def endless(length, generator):
    return itertools.cycle(torch.randperm(length, generator=generator).tolist())


# %% tags=["infinite_sampler", "wrong"]
# says: each sample exactly once
def endless(length, generator):
    while True:
        yield int(torch.randint(length, (), generator=generator))


# %% tags=["pinned", "wrong"]
# says: in ordinary memory
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=1)


def to_device(images, labels, device):
    return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


# %% tags=["pinned", "wrong"]
# says: waits for 8 of 16 copies
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, num_workers=1, pin_memory=True)


def to_device(images, labels, device):
    return images.to(device, non_blocking=True), labels.to(device)


# %% tags=["pinned", "wrong"]
# says: pins each batch itself
def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, pin_memory=True)


def to_device(images, labels, device):
    return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


# %% tags=["prefetcher", "wrong"]
# says: use a second stream
def prefetch(batches, device):
    following = None
    for batch in batches:
        current, following = following, batch.to(device, non_blocking=True)
        if current is not None:
            yield current
    yield following


# %% tags=["prefetcher", "wrong"]
# says: before its copy has ended
def prefetch(batches, device):
    copies = torch.cuda.Stream()
    following = None
    for batch in itertools.chain(batches, [None]):
        current = following
        if batch is not None:
            with torch.cuda.stream(copies):
                following = batch.to(device, non_blocking=True)
        if current is not None:
            current.record_stream(torch.cuda.current_stream())
            yield current


# %% tags=["accumulation", "wrong"]
# says: It trains differently
def train_step(model, optimizer, inputs, targets, micro):
    parts = list(zip(inputs.split(micro), targets.split(micro), strict=True))
    for some, labels in parts:
        (F.cross_entropy(model(some), labels) / len(parts)).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% tags=["accumulation", "wrong"]
# says: steps after each part
def train_step(model, optimizer, inputs, targets, micro):
    for some, labels in zip(inputs.split(micro), targets.split(micro), strict=True):
        F.cross_entropy(model(some), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% tags=["checkpointing", "wrong"]
# says: all blocks again at once
def forward(blocks, x):
    def all_blocks(inputs):
        for block in blocks:
            inputs = block(inputs)
        return inputs

    return checkpoint(all_blocks, x, use_reentrant=False)


# %% tags=["checkpointing", "wrong"]
# says: nothing can be learnt
def forward(blocks, x):
    with torch.no_grad():
        for block in blocks:
            x = block(x)
    return x


# %% tags=["uint8", "wrong"]
# says: copied as float32
def to_device(images, device, mean, std):
    images = images.to(device, torch.float32) / 255
    return (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)


# %% tags=["uint8", "wrong"]
# says: The numbers are not
def to_device(images, device, mean, std):
    return (images.to(device).float() - mean.view(3, 1, 1)) / std.view(3, 1, 1)


# %% tags=["batched_fetch", "wrong"]
# says: one by one
class Images(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        return [(self.images[index], self.labels[index]) for index in indices]


def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size)


# %% tags=["batched_fetch", "wrong"]
# says: stacks what is a batch already
class Images(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, indices):
        return self.images[indices], self.labels[indices]


def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size)


# %% tags=["scaler", "wrong"]
# says: is not scaled
def train_step(model, optimizer, scaler, inputs, targets):
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# %% tags=["scaler", "wrong"]
# says: clipped while they are scaled
def train_step(model, optimizer, scaler, inputs, targets):
    with torch.autocast(inputs.device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(inputs), targets)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach()


# %% tags=["graph_break", "wrong"]
# says: has to break the graph
def gate(x):
    return x * 2 if x.sum().item() > 0 else x - 1


# %% tags=["graph_break", "wrong"]
# says: has to break the graph
@torch.compiler.disable
def gate(x):
    return torch.where(x.sum() > 0, x * 2, x - 1)


# %% tags=["recompiles", "wrong"]
# says: too many lengths are left
def collate(sequences):
    longest = max(map(len, sequences))
    length = -(-longest // 8) * 8
    tokens = torch.stack([F.pad(sequence, (0, length - len(sequence))) for sequence in sequences])
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return tokens, torch.arange(length) < lengths[:, None]


# %% tags=["recompiles", "wrong"]
# says: was cut
def collate(sequences):
    tokens = torch.zeros(len(sequences), 32, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens[row, : min(32, len(sequence))] = sequence[:32]
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return tokens, torch.arange(32) < lengths[:, None]


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


# %% tags=["trace", "wrong"]
# says: A kernel inside another one
def idle_share(kernels, start, end):
    busy = sum(max(0, min(begin + duration, end) - max(begin, start)) for begin, duration in kernels)
    return 1 - busy / (end - start)


# %% tags=["trace", "wrong"]
# says: A kernel inside another one
def idle_share(kernels, start, end):
    idle, last = 0, start
    for begin, duration in sorted(kernels):
        idle += max(0, begin - last)
        last = begin + duration
    return (idle + max(0, end - last)) / (end - start)


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


# %% tags=["mask", "wrong"]
# says: The host waits
def masked_loss(logits, targets, mask):
    real = mask.nonzero().squeeze(1)
    return F.cross_entropy(logits.index_select(0, real), targets.index_select(0, real))


# %% tags=["mask", "wrong"]
# says: what is the sum divided by
def masked_loss(logits, targets, mask):
    return (F.cross_entropy(logits, targets, reduction="none") * mask).mean()


# %% tags=["padding", "wrong"]
# says: take a part of the probability
def pad_head(head):
    padded = nn.Linear(head.in_features, -(-head.out_features // 8) * 8)
    with torch.no_grad():
        padded.weight.zero_()
        padded.bias.zero_()
        padded.weight[: head.out_features] = head.weight
        padded.bias[: head.out_features] = head.bias
    return padded


# %% tags=["padding", "wrong"]
# says: some are lost
def pad_head(head):
    size = head.out_features // 8 * 8
    padded = nn.Linear(head.in_features, size)
    with torch.no_grad():
        padded.weight.copy_(head.weight[:size])
        padded.bias.copy_(head.bias[:size])
    return padded


# %% tags=["fused_optimizer", "wrong"]
# says: the wrong weight decay
def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)


# %% tags=["fused_optimizer", "wrong"]
# says: not the fused implementation
def make_optimizer(model):
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, foreach=True)


# %% tags=["no_sync", "wrong"]
# says: Is the forward pass inside `no_sync`, too?
def train_step(model, optimizer, parts):
    for number, (inputs, targets) in enumerate(parts, 1):
        loss = F.cross_entropy(model(inputs), targets) / len(parts)
        with contextlib.nullcontext() if number == len(parts) else model.no_sync():
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# %% tags=["no_sync", "wrong"]
# says: never averaged
def train_step(model, optimizer, parts):
    with model.no_sync():
        for inputs, targets in parts:
            (F.cross_entropy(model(inputs), targets) / len(parts)).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% tags=["prefetcher", "wrong"]
# says: it starts the iteration again with each copy
def prefetch(batches, device):
    copies = torch.cuda.Stream()

    def copy():
        for batch in batches:
            with torch.cuda.stream(copies):
                return batch.to(device, non_blocking=True)

    following = copy()
    while following is not None:
        torch.cuda.current_stream().wait_stream(copies)
        batch = following
        batch.record_stream(torch.cuda.current_stream())
        following = copy()
        yield batch
