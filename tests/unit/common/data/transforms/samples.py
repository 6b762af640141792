"""Splits with transforms, and functions that a user could name in `data.transforms`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from common.config.tasks import LanguageModelSettings
from common.data.batches import Arrays, Split
from common.data.splits.array_column import Column
from common.data.splits.array_split import ArraySplit
from common.data.transforms.builder import build_transforms
from common.data.transforms.transformed_data import set_ignored_labels
from common.data.transforms.transformed_split import TransformedSplit, transform_split

COUNT, CLASSES = 24, 3
LANGUAGE_MODEL = LanguageModelSettings(kind="language_model")
IMAGES = np.random.default_rng(0).random((COUNT, 6, 5, 3)).astype(np.float32)
LABELS = (np.arange(COUNT) % CLASSES).astype(np.int32)
TOKENS = np.arange(5 * 40, dtype=np.int32).reshape(5, 40)
IMAGE_SPLIT = ArraySplit({"images": Column(IMAGES)}, Column(LABELS))
TOKEN_SPLIT = ArraySplit({"tokens": Column(TOKENS)}, Column(TOKENS + 1), task=LANGUAGE_MODEL)
OFFSETS = np.array([0, 40, 47, 47, 120, 200])  # of ragged tokens, of which an example has none
RAGGED_TOKENS = Column(TOKENS.ravel(), OFFSETS)
RAGGED_SPLIT = ArraySplit({"tokens": RAGGED_TOKENS}, Column(TOKENS.ravel() + 1, OFFSETS), task=LANGUAGE_MODEL)
HERE = __name__


def transformed(*transforms: Any, source: Split = IMAGE_SPLIT, seed: int = 7) -> TransformedSplit:
    built = set_ignored_labels(build_transforms(transforms), LANGUAGE_MODEL)
    return transform_split(source, built, CLASSES if source is IMAGE_SPLIT else 0, seed)


def gather(split: TransformedSplit, ids: Sequence[int], epoch: int = 0, step: int = 1) -> Arrays:
    array = np.array(ids)
    return split.select_batch(epoch, step, array).gather(array, array)


def jitter(example: Arrays, generator: np.random.Generator, scale: float = 1.0) -> Arrays:
    noise = generator.random(example["images"].shape, np.float32)
    return {**example, "images": example["images"] + np.float32(scale) * noise}


def relabel(example: Arrays, generator: np.random.Generator, label: int, image: int | None = None) -> Arrays:
    """Set the label of all examples, or of one, which has the image of this number, possibly flipped."""
    is_chosen = image is None or np.isclose(example["images"].sum(), IMAGES[image].sum(), rtol=1e-6)
    return {**example, "labels": np.asarray(label if is_chosen else example["labels"], np.int32)}


def brighten_in_place(example: Arrays, generator: np.random.Generator) -> Arrays:
    example["images"] += np.float32(1)
    return example


def shared(example: Arrays, generator: np.random.Generator) -> Arrays:
    return {**example, "images": example["images"] * np.float32(np.random.random())}


calls = 0


def impure(example: Arrays, generator: np.random.Generator) -> Arrays:
    global calls
    calls += 1
    return {**example, "images": example["images"] + np.float32(calls)}


def wide(example: Arrays, generator: np.random.Generator) -> Arrays:
    return {**example, "images": example["images"].astype(np.float64)}


def uneven(example: Arrays, generator: np.random.Generator) -> Arrays:
    return {**example, "images": example["images"][: 3 + int(example["labels"])]}


def narrow(example: Arrays, generator: np.random.Generator) -> Arrays:
    return {**example, "labels": example["labels"].astype(np.uint8)}


def undefined(example: Arrays, generator: np.random.Generator) -> Arrays:
    return {**example, "images": example["images"] * np.float32("nan" if example["labels"] == 2 else 1)}


def partial(example: Arrays, generator: np.random.Generator) -> Arrays:
    return {"images": example["images"]}


def broken(example: Arrays, generator: np.random.Generator) -> Arrays:
    raise KeyError("photo")


def next_class(example: Arrays, generator: np.random.Generator) -> Arrays:
    return {**example, "labels": (example["labels"] + 1) % np.int32(CLASSES)}


def ignore_group(example: Arrays, generator: np.random.Generator) -> Arrays:
    return {**example, "y": np.asarray(-100, np.int32)}
