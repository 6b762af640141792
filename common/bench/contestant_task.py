"""What the contestants share: their arguments, the examples, and the rows that they write."""

import argparse
import json
import time
from pathlib import Path


def arguments() -> argparse.Namespace:
    """What `python -m common.bench` tells a contestant."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", type=Path, help="a directory in Hugging Face format, with a tokenizer")
    parser.add_argument("--data", type=Path, help="JSONL with premise, hypothesis and label")
    parser.add_argument("--output", type=Path, help="a directory for metrics.jsonl")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--global-batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def read_examples(args: argparse.Namespace) -> list[dict]:
    """Dicts of premise, hypothesis and label, an integer."""
    ids = _label_ids(args)
    examples = [json.loads(line) for line in args.data.open()]
    return [{**example, "label": ids.get(str(example["label"]), example["label"])} for example in examples]


def number_of_classes(args: argparse.Namespace) -> int:
    """The labels that the model knows."""
    return len(_label_ids(args))


def _label_ids(args: argparse.Namespace) -> dict[str, int]:
    ids: dict[str, int] = json.loads((args.weights / "config.json").read_text())["label2id"]
    return ids


class Rows:
    """Appends a row for each step to metrics.jsonl."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.file = (args.output / "metrics.jsonl").open("a")
        self.global_batch_size = args.global_batch_size
        self.step = self.tokens = 0

    def write(self, tokens: int, **counters: float) -> None:
        """After a step. tokens: of its global batch, padding not counted. counters: further ones, so far."""
        self.step += 1
        self.tokens += tokens
        row = {"step": self.step, "examples": self.step * self.global_batch_size, "tokens": self.tokens, **counters}
        self.file.write(json.dumps({**row, "seconds": time.perf_counter()}) + "\n")
        self.file.flush()
