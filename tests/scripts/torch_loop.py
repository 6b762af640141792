"""Train an image classifier in a plain PyTorch loop, as users write it. --record DIR records its first steps."""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from torch_impl.record import Recorder


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.1)
        self.fc1 = nn.Linear(4 * 5 * 5, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.conv1(images)))
        x = torch.flatten(functional.max_pool2d(x, 2), 1)
        logits: torch.Tensor = self.fc2(self.dropout(functional.relu(self.fc1(x))))
        return logits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--record")
    args = parser.parse_args()

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 1, 12, 12), torch.randint(0, 10, (96,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=len(loader))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=args.amp)
    if args.record:
        Recorder(args.record, model, optimizer)

    model.train()
    for index, (images, labels) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
            loss = functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        scaler.scale(loss / args.accumulate).backward()
        if (index + 1) % args.accumulate == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
        print(f"{index} loss {loss.item():.17g}")


if __name__ == "__main__":
    main()
