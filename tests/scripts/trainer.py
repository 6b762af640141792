"""Fine-tune a small BERT with Hugging Face's Trainer. --record DIR records its first steps."""

import argparse
import tempfile
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import ProgressCallback, TrainerCallback

from torch_impl.record import TrainerRecorder


class LossPrinter(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            print(f"loss {logs['loss']:.17g}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    args = parser.parse_args()

    set_seed(0)
    config = BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )  # fmt: skip
    config.num_labels = 3
    model = BertForSequenceClassification(config)
    examples = [
        {"input_ids": torch.randint(5, 60, (9,)), "attention_mask": torch.ones(9, dtype=torch.long), "labels": i % 3}
        for i in range(64)
    ]
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-3,
            weight_decay=0.01, warmup_steps=2, max_steps=6, logging_steps=1, save_strategy="no", report_to="none",
            use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        callbacks = [LossPrinter(), *([TrainerRecorder(args.record)] if args.record else [])]
        trainer = Trainer(model, arguments, train_dataset=examples, callbacks=callbacks)
        trainer.remove_callback(ProgressCallback)
        trainer.train()


if __name__ == "__main__":
    main()
