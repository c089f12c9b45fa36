"""timm's training script in short: its model, loader, optimizer, schedule and loss."""

import argparse

import torch
from timm.data import create_loader
from timm.loss import LabelSmoothingCrossEntropy
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, random_seed


class Pictures(torch.utils.data.Dataset):
    """Random pictures, as 8-bit numbers, which timm's collate function expects."""

    transform = None

    def __init__(self, count):
        generator = torch.Generator().manual_seed(0)
        self.pictures = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture = self.pictures[index].float() / 255 if self.transform is None else self.transform(index)
        return picture, index % 10


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, scheduler):
    losses = AverageMeter()
    model.train()
    for batch_idx, (inputs, target) in enumerate(loader):
        output = model(inputs)
        loss = loss_fn(output, target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.update(loss.item(), inputs.size(0))
        scheduler.step_update(num_updates=epoch * len(loader) + batch_idx + 1, metric=losses.avg)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", type=int, default=8)
    parser.add_argument("-j", "--workers", type=int, default=0)
    args = parser.parse_args()
    random_seed(42, 0)
    model = create_model("mobilenetv3_small_050", num_classes=10, drop_rate=0.0)
    train = Pictures(400)
    loader = create_loader(
        train, input_size=(3, 32, 32), batch_size=args.batch_size, is_training=True, no_aug=True,
        use_prefetcher=False, num_workers=args.workers, persistent_workers=args.workers > 0, pin_memory=False,
        device=torch.device("cpu"),
    )  # fmt: skip
    train.transform = None
    optimizer = create_optimizer_v2(model, opt="momentum", lr=0.01, weight_decay=2e-5)
    scheduler, num_epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=1000, warmup_epochs=0)
    loss_fn = LabelSmoothingCrossEntropy(smoothing=0.1)
    for epoch in range(num_epochs):
        train_one_epoch(epoch, model, loader, optimizer, loss_fn, scheduler)
        scheduler.step(epoch + 1)


if __name__ == "__main__":
    main()
