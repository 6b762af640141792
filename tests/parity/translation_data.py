"""Random sentences whose translation has one token for each of the first tokens. Targets end early in many examples."""

from pathlib import Path

import numpy as np

WORDS, SOURCE, TARGET = 12, 7, 5


def write(directory: Path) -> None:
    """Write train.npz and validation.npz: input_ids, attention_mask, decoder_input_ids, and labels with -100."""
    stream = np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 90), ("validation", 40)):
        source = stream.integers(1, WORDS, (count, SOURCE))
        mask = np.arange(SOURCE) < stream.integers(2, SOURCE + 1, (count, 1))
        target = (source[:, :TARGET] * 5 + 1) % WORDS
        is_real = np.arange(TARGET) < stream.integers(0, TARGET + 1, (count, 1))  # some examples have no target
        shifted = np.pad(target, ((0, 0), (1, 0)))[:, :-1]
        arrays = {"input_ids": source * mask, "attention_mask": mask, "decoder_input_ids": shifted * is_real}
        arrays = {key: array.astype(np.int32) for key, array in arrays.items()}
        arrays["labels"] = np.where(is_real, target, -100)
        np.savez(directory / f"{name}.npz", **arrays)  # type: ignore[arg-type]  # allow_pickle is no array
