"""Hugging Face's Trainer with its defaults: a dataset that is tokenized first, padded batch by batch, in random order.

torchrun starts a process for each replica.
"""

import datasets
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from typing_extensions import override

from common.bench.contestant_task import RowWriter, parse_arguments, read_examples

args = parse_arguments()
tokenizer = AutoTokenizer.from_pretrained(args.weights)
dataset = datasets.Dataset.from_list(read_examples(args)).map(
    lambda batch: tokenizer(batch["premise"], batch["hypothesis"], truncation=True, max_length=args.max_length),
    batched=True,
    remove_columns=["premise", "hypothesis"],
)
mean_tokens = sum(map(len, dataset["input_ids"])) / len(dataset)
model = AutoModelForSequenceClassification.from_pretrained(args.weights)


class RowCallback(TrainerCallback):
    """Callback that writes a row after each step. Without the batch, it counts the mean tokens of a batch."""

    @override
    def on_train_begin(self, *_: object, **__: object) -> None:
        self.writer = RowWriter(args) if trainer.is_world_process_zero() else None

    @override
    def on_step_end(self, *_: object, **__: object) -> None:
        if self.writer is not None:
            self.writer.write(round(mean_tokens * args.global_batch_size))


trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=str(args.output),
        per_device_train_batch_size=args.global_batch_size // args.replicas,
        learning_rate=args.learning_rate,
        weight_decay=0.01,
        max_steps=1_000_000,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        bf16=args.precision == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        dataloader_drop_last=True,
        seed=args.seed,
    ),
    train_dataset=dataset,
    data_collator=DataCollatorWithPadding(tokenizer),
    callbacks=[RowCallback()],
)
trainer.train()
