"""Train the network of keras_fit.py in PyTorch. --record DIR records the first steps, --follow DIR follows a record."""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from torch_impl.record import Recorder


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8, eps=1e-3, momentum=0.01)
        self.head = nn.Linear(8 * 5 * 5, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.norm(functional.relu(self.conv(images / 255)))
        logits: torch.Tensor = self.head(torch.flatten(functional.max_pool2d(x, 2), 1))
        return logits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    parser.add_argument("--follow")
    args = parser.parse_args()

    torch.manual_seed(0)
    data = TensorDataset(256 * torch.rand(80, 1, 12, 12), torch.randint(0, 2, (80,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01, eps=1e-7)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    recorder = Recorder(args.record, model, optimizer, follow=args.follow)
    for images, labels in recorder.batches(loader) if args.follow else loader:
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        print(f"loss {loss.item():.17g}")


if __name__ == "__main__":
    main()
