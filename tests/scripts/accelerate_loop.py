"""Train a text classifier with Accelerate, which accumulates gradients. --record DIR records its first steps."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_impl.record import Recorder


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.layer(self.embedding(tokens))
        logits: torch.Tensor = self.head(states.mean(1))
        return logits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    args = parser.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
    data = TensorDataset(torch.randint(1, 50, (80, 7)), torch.randint(0, 3, (80,)))
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    model, optimizer, loader, scheduler = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=8, shuffle=True), scheduler
    )
    if args.record:
        Recorder(args.record, model, optimizer, scheduler=scheduler)

    for tokens, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(tokens), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(f"loss {loss.item():.17g}")


if __name__ == "__main__":
    main()
