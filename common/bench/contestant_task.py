"""The task that all contestants share: their arguments, the examples, and the rows that they write."""

import argparse
import json
import time
from pathlib import Path
from typing import TypedDict


class LabelledPair(TypedDict):
    """A pair of sentences with its class."""

    premise: str
    hypothesis: str
    label: int


def parse_arguments() -> argparse.Namespace:
    """Return the arguments that `python -m common.bench` passes to a contestant."""
    parser = _build_parser()
    parser.add_argument("--weights", type=Path, help="a directory in Hugging Face format, with a tokenizer")
    parser.add_argument("--data", type=Path, help="JSONL with premise, hypothesis and label")
    parser.add_argument("--max-length", type=int, default=128)
    return parser.parse_args()


def parse_custom_arguments() -> argparse.Namespace:
    """Return the arguments that `python -m common.bench` passes to a contestant that trains a user's own model."""
    parser = _build_parser()
    parser.add_argument("--model", help="the function that makes the model, as module:function")
    parser.add_argument("--arguments", type=json.loads, help="the function's keyword arguments, as JSON")
    parser.add_argument("--loss", help="cross_entropy or mse")
    parser.add_argument("--data", type=Path, help="npz with the inputs by name, and labels")
    parser.add_argument("--channels", type=json.loads, help="the inputs whose last axis is channels, as JSON")
    parser.add_argument("--ragged", type=json.loads, help="the inputs of different lengths, as JSON; each has a mask")
    return parser.parse_args()


def _build_parser() -> argparse.ArgumentParser:
    """Return a parser of the arguments that all contestants have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, help="a directory for metrics.jsonl")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--global-batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def read_examples(args: argparse.Namespace) -> list[LabelledPair]:
    """Return the training examples. Labels that are names of classes are replaced by their numbers."""
    label_ids = _read_label_ids(args)
    examples: list[LabelledPair] = [json.loads(line) for line in args.data.open()]
    for example in examples:
        example["label"] = label_ids.get(str(example["label"]), example["label"])
    return examples


def count_classes(args: argparse.Namespace) -> int:
    """Return the number of classes of the model."""
    return len(_read_label_ids(args))


def _read_label_ids(args: argparse.Namespace) -> dict[str, int]:
    label_ids: dict[str, int] = json.loads((args.weights / "config.json").read_text())["label2id"]
    return label_ids


class RowWriter:
    """Writer of a row for each step to metrics.jsonl."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.file = (args.output / "metrics.jsonl").open("a")
        self.global_batch_size = args.global_batch_size
        self.step = self.tokens = 0

    def write(self, tokens: int, **counters: float) -> None:
        """Write the row of a step.

        Args:
            tokens: The tokens of the global batch, without padding.
            counters: Other values of the row, such as a counter of operations so far.
        """
        self.step += 1
        self.tokens += tokens
        row = {"step": self.step, "examples": self.step * self.global_batch_size, "tokens": self.tokens, **counters}
        self.file.write(json.dumps({**row, "seconds": time.perf_counter()}) + "\n")
        self.file.flush()
