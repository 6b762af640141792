"""Streams as users read them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

Examples = Iterator[dict[str, Any]]

CODE = dict.update  # a function of C, whose signature Python does not know


def count(split: str, start: int = 0) -> Examples:
    for number in range(start, 1000 if split == "train" else 6):
        yield {"x": np.array([number, 1], np.float32), "labels": number % 3}


def count_bools(split: str, start: int = 0) -> Examples:
    for example in count(split, start):
        is_odd = int(example["x"][0]) % 2 == 1
        yield {**example, "labels": np.bool_(is_odd), "w": 2 if is_odd else 1}


def lose_array(split: str, start: int = 0) -> Examples:
    for example in count(split, start):
        yield {"y" if example["x"][0] >= 20 and split == "train" else "x": example["x"], "labels": example["labels"]}


def ignore_start(split: str, start: int = 0) -> Examples:
    yield from count(split, start * 0)


def lack_start(split: str) -> Examples:
    yield from count(split)


def end_early(split: str, start: int = 0) -> Examples:
    yield from (example for number, example in zip(range(start, 33), count(split, start), strict=False))


def fail(split: str, start: int = 0) -> Examples:
    for example in count(split, start):
        if example["x"][0] == 27:
            raise OSError("no such shard")
        yield example


def yield_text(split: str, start: int = 0) -> Examples:
    for example in count(split, start):
        yield {**example, "x": "text" if example["x"][0] == 27 else example["x"]}


def change_shape(split: str, start: int = 0) -> Examples:
    for example in count(split, start):
        yield {**example, "x": np.zeros(3) if example["x"][0] >= 20 else example["x"]}


def become_nan(split: str, start: int = 0) -> Examples:
    for example in count(split, start):
        yield {**example, "x": np.where(example["x"] == 26, np.nan, example["x"])}


def unknown_class(split: str, start: int = 0) -> Examples:
    for example in count(split, start):
        yield {**example, "labels": 7 if example["x"][0] == 25 else example["labels"]}


def unknown_word(split: str, start: int = 0) -> Examples:
    for example in count(split, start):
        yield {"x": np.array([min(int(example["x"][0]), 24)]), "labels": example["labels"]}
