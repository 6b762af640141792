"""Train a classifier with Lightning. --record DIR records its first steps."""

import argparse
import logging

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_impl.record import LightningRecorder


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 5))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        features, labels = batch
        loss = nn.functional.cross_entropy(self.layers(features), labels)
        print(f"loss {loss.item():.17g}")
        return loss

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    args = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(96, 20), torch.randint(0, 5, (96,)))
    trainer = lightning.Trainer(
        max_steps=6, accelerator="cpu", devices=1, accumulate_grad_batches=2, gradient_clip_val=0.5, logger=False,
        callbacks=[LightningRecorder(args.record)] if args.record else [],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Classifier(), DataLoader(data, batch_size=8, shuffle=True))


if __name__ == "__main__":
    main()
