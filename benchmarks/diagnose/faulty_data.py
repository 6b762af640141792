"""Small data for the planted causes, and the same data with faults.

`python -m benchmarks.diagnose.faulty_data DIRECTORY` writes them.
"""

import sys
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]
EXAMPLES, LENGTH, CLASSES = 24, 7, 3


def draw_text() -> Arrays:
    """Draw tokens int64 [n, 7], the mask `real` int64 [n, 7], and labels int64 [n]."""
    stream = np.random.default_rng(1)
    tokens = stream.integers(1, 20, (EXAMPLES, LENGTH))
    mask = (np.arange(LENGTH) < stream.integers(3, LENGTH + 1, EXAMPLES)[:, None]).astype(np.int64)
    return {"tokens": tokens * mask, "real": mask, "labels": stream.integers(0, CLASSES, EXAMPLES)}


def draw_images() -> Arrays:
    """Draw images float32 [n, 8, 8, 3] and labels int64 [n]."""
    stream = np.random.default_rng(2)
    images = stream.standard_normal((EXAMPLES, 8, 8, 3)).astype(np.float32)
    return {"images": images, "labels": stream.integers(0, CLASSES, EXAMPLES)}


def cut_at_start(text: Arrays) -> np.ndarray:
    """Return the tokens as if long texts, which are two tokens longer than the limit, had lost their first two tokens.

    The correct data have lost the last two instead.
    """
    fills_length = text["real"].all(1, keepdims=True)
    more_tokens = np.random.default_rng(3).integers(1, 20, (EXAMPLES, 2))
    return np.where(fills_length, np.hstack([text["tokens"][:, 2:], more_tokens]), text["tokens"])


def pad_at_start(text: Arrays) -> Arrays:
    """Move the padding of the tokens and the mask to the start."""
    lengths = text["real"].sum(1)
    return {
        name: np.array([np.roll(row, -length) for row, length in zip(text[name], lengths, strict=True)])
        for name in ("tokens", "real")
    }


def plant_faults(text: Arrays) -> dict[str, Arrays]:
    """Return the arrays that each fault replaces."""
    tokens, labels = text["tokens"], text["labels"]
    return {
        "swapped": {"tokens": np.roll(tokens, 1, axis=0)},
        "labels": {"labels": (labels + (np.arange(EXAMPLES) == 3)) % CLASSES},
        "no_mask": {"real": np.ones_like(text["real"])},
        "reversed": {"tokens": tokens[:, ::-1].copy()},
        "shifted": {"tokens": (tokens + 1) % 20},
        "cut_at_the_start": {"tokens": cut_at_start(text)},
        "padded_at_the_start": pad_at_start(text),
        "lower_case": {"tokens": np.where(tokens > 12, tokens - 10, tokens)},
        "order_of_classes": {"labels": CLASSES - 1 - labels},
        "zeros": {"tokens": np.zeros_like(tokens)},
    }


def write_data(directory: Path) -> None:
    """Write text.npz, images.npz, scaled.npz, and a file for each fault of the text."""
    directory.mkdir(parents=True, exist_ok=True)
    text, images = draw_text(), draw_images()
    files = {"text": text, "images": images, "scaled": {**images, "images": images["images"] * 255}}
    files |= {fault: {**text, **arrays} for fault, arrays in plant_faults(text).items()}
    for name, arrays in files.items():
        np.savez(directory / f"{name}.npz", **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    write_data(Path(sys.argv[1]))
