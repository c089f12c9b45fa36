"""As Lightning's own "Lightning in 15 minutes", with random pictures in the place of MNIST."""

import lightning as L
import torch
from torch import nn, optim, utils

encoder = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 3))
decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28 * 28))


class LitAutoEncoder(L.LightningModule):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        z = self.encoder(x)
        x_hat = self.decoder(z)
        loss = nn.functional.mse_loss(x_hat, x)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        self.log("val_loss", nn.functional.mse_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        return optim.Adam(self.parameters(), lr=1e-3)


def pictures(count):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (count,), generator=generator)
    return utils.data.TensorDataset(torch.rand(count, 1, 28, 28, generator=generator), labels)


if __name__ == "__main__":
    L.seed_everything(0)
    train_loader = utils.data.DataLoader(pictures(480), batch_size=16, shuffle=True)
    val_loader = utils.data.DataLoader(pictures(64), batch_size=16)
    trainer = L.Trainer(
        limit_train_batches=100, max_epochs=1000, accelerator="cpu", enable_progress_bar=False
    )
    trainer.fit(
        model=LitAutoEncoder(encoder, decoder), train_dataloaders=train_loader, val_dataloaders=val_loader
    )
