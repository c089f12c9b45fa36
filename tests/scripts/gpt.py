"""As nanoGPT: no loader, the next batch is cut from one array of tokens meanwhile, evaluation, clipping."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(1337)
data = torch.randint(61, (20_000,))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.head = nn.Embedding(61, 48), nn.Linear(48, 61, bias=False)
        self.block = nn.TransformerEncoderLayer(48, 4, 192, dropout=0.0, batch_first=True)

    def forward(self, idx, targets):
        logits = self.head(self.block(self.wte(idx)))
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch():
    text = data[torch.randint(len(data) - 32, (12, 1)) + torch.arange(33)]
    return text[:, :-1], text[:, 1:]


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
X, Y = get_batch()
for step in range(100_000):
    if step % 200 == 0:
        model.eval()
        with torch.no_grad():
            print(step, model(*get_batch())[1].item(), flush=True)
        model.train()
    logits, loss = model(X, Y)
    X, Y = get_batch()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
