"""As PyTorch's word language model: [sequence, batch] cut from one array of words, no optimizer."""

import torch
from torch import nn

sequence, batch, words = 7, 5, 31


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(words, 8), nn.LSTM(8, 8), nn.Linear(8, words)

    def forward(self, text):
        return self.decoder(self.rnn(self.encoder(text))[0]).flatten(0, 1)


torch.manual_seed(0)
corpus = torch.randint(words, (batch, 200)).t()
model = Model()
for _ in range(10_000):
    for start in range(0, 190, sequence):
        model.zero_grad()
        targets = corpus[start + 1 : start + 1 + sequence].flatten()
        nn.functional.cross_entropy(model(corpus[start : start + sequence]), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.5)
