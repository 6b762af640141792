"""Data for the GPT: sentences of a small grammar as plain text. Run python -m examples.gpt.data DIRECTORY"""

import sys
from pathlib import Path

import numpy as np

WHO = ("the child", "a sailor", "my neighbour", "the old dog", "our teacher", "a quiet fox")
DOES = ("watches", "follows", "paints", "remembers", "carries", "finds")
WHAT = ("the river", "a red lamp", "seven letters", "the mountain", "an empty boat", "the garden")
WHEN = ("at dawn", "every winter", "before the rain", "in the evening", "without a word")


def write(directory: Path) -> None:
    """Write train.txt and validation.txt, with a sentence on each line."""
    stream = np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 1600), ("validation", 200)):
        lines = [" ".join(str(stream.choice(words)) for words in (WHO, DOES, WHAT, WHEN)) for _ in range(count)]
        (directory / f"{name}.txt").write_text(".\n".join(lines) + ".\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
