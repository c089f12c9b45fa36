"""As nanoGPT: no loader, batches cut from one array of tokens, a step count instead of epochs, clipping."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

batch_size, block_size, width, tokens = 12, 32, 48, 61
learning_rate, eval_interval, max_iters = 1e-3, 200, 100_000
data = np.random.default_rng(0).integers(0, tokens, 20_000).astype(np.uint16)
torch.manual_seed(1337)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.attend(self.norms[0](x)).chunk(3, -1)
        )
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(heads.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(tokens, width), nn.Embedding(block_size, width)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(width, tokens, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        logits = self.head(self.blocks(x))
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch():
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in starts.tolist()])
    y = torch.stack(
        [torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in starts.tolist()]
    )
    return x, y


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
X, Y = get_batch()
for step in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * min(1.0, (step + 1) / 100)
    if step % eval_interval == 0:
        model.eval()
        with torch.no_grad():
            print(step, sum(model(*get_batch())[1].item() for _ in range(4)) / 4, flush=True)
        model.train()
    logits, loss = model(X, Y)
    X, Y = get_batch()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
