"""A training loop with Hugging Face's Accelerate, as its quick tour writes it.

torchrun starts a process for each replica.
"""

import itertools

import datasets
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

from common.bench.contestant_task import RowWriter, parse_arguments, read_examples

args = parse_arguments()
torch.manual_seed(args.seed)
accelerator = Accelerator(
    cpu=not torch.cuda.is_available(), mixed_precision="bf16" if args.precision == "bfloat16" else "no"
)
tokenizer = AutoTokenizer.from_pretrained(args.weights)
dataset = datasets.Dataset.from_list(read_examples(args)).map(
    lambda batch: tokenizer(batch["premise"], batch["hypothesis"], truncation=True, max_length=args.max_length),
    batched=True,
    remove_columns=["premise", "hypothesis"],
)
loader = DataLoader(
    dataset.rename_column("label", "labels"),
    args.global_batch_size // accelerator.num_processes,
    shuffle=True,
    collate_fn=DataCollatorWithPadding(tokenizer),
    drop_last=True,
)
model = AutoModelForSequenceClassification.from_pretrained(args.weights)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
writer = RowWriter(args) if accelerator.is_main_process else None

model.train()
for _ in itertools.count():
    for batch in loader:
        # The other shards have about as many tokens.
        tokens = int(batch["attention_mask"].sum()) * accelerator.num_processes
        loss = model(**batch).loss
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if writer is not None:
            writer.write(tokens)
            if writer.step % 10 == 0:
                accelerator.print(f"step {writer.step}: loss {loss.item():.4f}")
