"""Data for the LSTM: sequences of 3 to 20 tokens, labelled by whether most tokens are above 10.

Run python -m examples.lstm.data DIRECTORY
"""

import sys
from pathlib import Path

import numpy as np


def write(directory: Path) -> None:
    """Write train.npz and validation.npz: labels int64 [n], tokens int32 [t] and tokens.offsets int64 [n + 1].

    The tokens of all examples stand one after the other. Example i is tokens[offsets[i] : offsets[i + 1]].
    """
    stream = np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 2000), ("validation", 400)):
        texts = [stream.integers(1, 20, stream.integers(3, 21)) for _ in range(count)]
        labels = [int((text > 10).mean() > 0.5) for text in texts]
        arrays: dict[str, np.ndarray] = {
            "tokens": np.concatenate(texts).astype(np.int32),
            "tokens.offsets": np.cumsum([0, *map(len, texts)]),
            "labels": np.array(labels),
        }
        np.savez(directory / f"{name}.npz", **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
