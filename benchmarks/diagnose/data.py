"""Small data for the planted causes, and the same data with faults: python -m benchmarks.diagnose.data DIRECTORY"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]
EXAMPLES = 24


def text() -> Arrays:
    """tokens int64 [n, 7], real int64 [n, 7], labels int64 [n]."""
    stream = np.random.default_rng(1)
    tokens = stream.integers(1, 20, (EXAMPLES, 7))
    mask = (np.arange(7) < stream.integers(3, 8, EXAMPLES)[:, None]).astype(np.int64)
    return {"tokens": tokens * mask, "real": mask, "labels": stream.integers(0, 3, EXAMPLES)}


def images() -> Arrays:
    """images float32 [n, 8, 8, 3], labels int64 [n]."""
    stream = np.random.default_rng(2)
    return {
        "images": stream.standard_normal((EXAMPLES, 8, 8, 3)).astype(np.float32),
        "labels": stream.integers(0, 3, EXAMPLES),
    }


def swapped(arrays: Arrays) -> Arrays:
    """The tokens of examples in other places than their labels."""
    return {**arrays, "tokens": np.roll(arrays["tokens"], 1, axis=0)}


def cut_at_the_start(arrays: Arrays) -> Arrays:
    """The last tokens of texts of nine, where the others are the first."""
    full = arrays["real"].all(1, keepdims=True)
    more = np.random.default_rng(3).integers(1, 20, (EXAMPLES, 2))
    return {**arrays, "tokens": np.where(full, np.hstack([arrays["tokens"][:, 2:], more]), arrays["tokens"])}


def padded_at_the_start(arrays: Arrays) -> Arrays:
    counts = arrays["real"].sum(1)
    moved = {
        name: np.array([np.roll(each, -count) for each, count in zip(arrays[name], counts, strict=True)])
        for name in ("tokens", "real")
    }
    return {**arrays, **moved}


FAULTS = {
    "swapped": swapped,
    "labels": lambda arrays: {**arrays, "labels": (arrays["labels"] + (np.arange(EXAMPLES) == 3)) % 3},
    "no_mask": lambda arrays: {**arrays, "real": np.ones_like(arrays["real"])},
    "reversed": lambda arrays: {**arrays, "tokens": arrays["tokens"][:, ::-1].copy()},
    "shifted": lambda arrays: {**arrays, "tokens": (arrays["tokens"] + 1) % 20},
    "cut_at_the_start": cut_at_the_start,
    "padded_at_the_start": padded_at_the_start,
    "lower_case": lambda arrays: {
        **arrays,
        "tokens": np.where(arrays["tokens"] > 12, arrays["tokens"] - 10, arrays["tokens"]),
    },
    "order_of_classes": lambda arrays: {**arrays, "labels": 2 - arrays["labels"]},
    "zeros": lambda arrays: {**arrays, "tokens": np.zeros_like(arrays["tokens"])},
}


def write(directory: Path) -> None:
    """text.npz, images.npz, scaled.npz, and a file for each fault of the text."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {"text": text(), "images": images(), "scaled": {**images(), "images": images()["images"] * 255}}
    files |= {name: fault(text()) for name, fault in FAULTS.items()}
    for name, arrays in files.items():
        np.savez(directory / f"{name}.npz", **arrays)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
