"""DistributedDataParallel as its tutorial writes it: batches are tokenized and padded as they are loaded.

torchrun starts a process for each replica.
"""

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from common.bench.contestant_task import LabelledPair, RowWriter, parse_arguments, read_examples

args = parse_arguments()
torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
if device.type == "cuda":
    torch.cuda.set_device(rank)

tokenizer = AutoTokenizer.from_pretrained(args.weights)


def collate(examples: list[LabelledPair]) -> dict[str, torch.Tensor]:
    """Return a batch of tokens, padded to its longest example."""
    premises, hypotheses = [pair["premise"] for pair in examples], [pair["hypothesis"] for pair in examples]
    batch = tokenizer(
        premises, hypotheses, padding=True, truncation=True, max_length=args.max_length, return_tensors="pt"
    )
    return {**batch, "labels": torch.tensor([pair["label"] for pair in examples])}


examples: Any = read_examples(args)  # DistributedSampler is typed for datasets
sampler: DistributedSampler = DistributedSampler(examples, shuffle=True, seed=args.seed, drop_last=True)
loader: DataLoader = DataLoader(
    examples, args.global_batch_size // world_size, sampler=sampler, collate_fn=collate, drop_last=True
)
model = AutoModelForSequenceClassification.from_pretrained(args.weights).to(device)
model = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
writer = RowWriter(args) if rank == 0 else None

model.train()
for epoch in itertools.count():
    sampler.set_epoch(epoch)
    for batch in loader:
        tokens = int(batch["attention_mask"].sum()) * world_size  # the other shards have about as many
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bfloat16"):
            loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if writer is not None:
            writer.write(tokens)
            if writer.step % 10 == 0:
                print(f"step {writer.step}: loss {loss.item():.4f}", flush=True)
