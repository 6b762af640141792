"""Train a small language model in a plain PyTorch loop. --record DIR records its first steps."""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from torch_impl.record import Recorder

WORDS, LENGTH, PADDING, WIDTH = 40, 10, 0, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(functional.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril() & attention_mask[:, None, None, :]
        x = self.tokens(ids) + self.positions.weight[:length]
        for block in self.blocks:
            x = block(x, mask)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--record")
    args = parser.parse_args()

    torch.manual_seed(0)
    lengths = torch.randint(4, LENGTH + 1, (48, 1))
    texts = torch.randint(1, WORDS, (48, LENGTH))
    texts[torch.arange(LENGTH) >= lengths] = PADDING
    loader = DataLoader(TensorDataset(texts), batch_size=8 // args.accumulate, shuffle=True)
    model = LanguageModel()
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    if args.record:
        Recorder(args.record, model, optimizer)

    model.train()
    for epoch in range(2):
        for index, (ids,) in enumerate(loader):
            logits = model(ids[:, :-1], ids[:, :-1] != PADDING)
            labels = ids[:, 1:]
            loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PADDING)
            (loss / args.accumulate).backward()
            if (index + 1) % args.accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            print(f"epoch {epoch} loss {loss.item():.17g}")


if __name__ == "__main__":
    main()
