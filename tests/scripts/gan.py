"""As PyTorch's dcgan: two models, two optimizers, three backward passes a step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
pictures = torch.randn(512, 3, 16, 16)
loader = DataLoader(TensorDataset(pictures), batch_size=16, shuffle=True)
generator = nn.Sequential(nn.ConvTranspose2d(8, 16, 4), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 4), nn.Tanh())
discriminator = nn.Sequential(nn.Conv2d(3, 16, 4, 2), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(16 * 49, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))

for _epoch in range(1000):
    for (real,) in loader:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        discriminator.zero_grad()
        criterion(discriminator(real), ones).backward()
        fake = generator(torch.randn(len(real), 8, 1, 1))
        criterion(discriminator(fake.detach()), zeros).backward()
        optimizer_d.step()
        generator.zero_grad()
        criterion(discriminator(fake), ones).backward()
        optimizer_g.step()
