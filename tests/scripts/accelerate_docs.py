"""As Accelerate's quick tour, with accumulation; the tour's own lines are those with `accelerator`."""

import torch
from accelerate import Accelerator
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    inputs, targets = torch.randn(640, 32), torch.randint(4, (640,))
    dataloader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.9)
    model, optimizer, training_dataloader, scheduler = accelerator.prepare(
        model, optimizer, dataloader, scheduler
    )
    for _epoch in range(1000):
        for inputs, targets in training_dataloader:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
