"""Hugging Face's Trainer with its defaults: a dataset that is tokenized first, padded batch by batch, in random order.

Started by torchrun, a process for each replica.
"""

from typing import Any

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

from common.bench.contestant_task import Rows, arguments, read_examples

args = arguments()
tokenizer = AutoTokenizer.from_pretrained(args.weights)
dataset = datasets.Dataset.from_list(read_examples(args)).map(
    lambda batch: tokenizer(batch["premise"], batch["hypothesis"], truncation=True, max_length=args.max_length),
    batched=True,
    remove_columns=["premise", "hypothesis"],
)
mean_tokens = sum(map(len, dataset["input_ids"])) / len(dataset)
model = AutoModelForSequenceClassification.from_pretrained(args.weights)


class WriteRows(TrainerCallback):
    """Writes a row after each step. The tokens are those of the mean batch: a callback does not see the batch."""

    def on_train_begin(self, *given: Any, **others: Any) -> None:
        self.rows = Rows(args) if trainer.is_world_process_zero() else None

    def on_step_end(self, *given: Any, **others: Any) -> None:
        if self.rows is not None:
            self.rows.write(round(mean_tokens * args.global_batch_size))


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
    callbacks=[WriteRows()],
)
trainer.train()
