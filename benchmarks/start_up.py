"""Measure the time from the start of a rank to its first batch, with a small and a large corpus: make bench-start-up.

The training command prepares the inputs of a run once, and its processes (ranks) only open them. The start-up of a rank
must therefore not grow with the corpus.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SIZES = {"10 thousand": 10_000, "5 million": 5_000_000}
TRAIN = ("model=convnet", "data=idx", "strategy=single", "train.steps=1", "train.checkpoint_every=null")
# The program of a rank that reports the time of its first batch and exits.
RANK = """
import os, runpy, sys, time
from common.data import batches

gather = batches.GlobalBatch._gather
extra_batches = iter(range(FRAMEWORK == "tf"))  # TensorFlow's side gathers one batch earlier, to learn the shapes

def report_first(self, ids):
    gathered = gather(self, ids)
    if next(extra_batches, None) is not None:
        return gathered
    print("first batch at", time.time(), flush=True)
    os._exit(0)

batches.GlobalBatch._gather = report_first
sys.argv = ["launch", sys.argv[2]]
runpy.run_module(f"{FRAMEWORK}_impl.launch", run_name="__main__")
"""


def main() -> None:
    """Measure both sides and print the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory(prefix="lockstep-start-up-") as directory:
        for framework in ("torch", "tf"):
            run_dirs = {name: prepare(framework, Path(directory), count) for name, count in SIZES.items()}
            seconds: dict[str, list[float]] = {name: [] for name in run_dirs}
            for _ in range(repeats + 1):  # the corpora take turns; the first measurement of each is a warm-up
                for name, run_dir in run_dirs.items():
                    seconds[name].append(measure_first_batch(framework, run_dir))
            small, large = (values[1:] for values in seconds.values())
            ratio = statistics.median(b / a for a, b in zip(small, large, strict=True))
            medians = ", ".join(f"{name} {statistics.median(values[1:]):.2f} s" for name, values in seconds.items())
            print(f"{framework}: {medians}; ratio {ratio:.3f} (median of {repeats})")


def prepare(framework: str, directory: Path, count: int) -> Path:
    """Train a run of one step on a corpus of `count` images. Return the run directory, which a rank can start from."""
    corpus, run_dir = directory / f"corpus-{count}", directory / f"{framework}-{count}"
    if not corpus.exists():
        corpus.mkdir()
        random = np.random.default_rng(0)
        for split, size in (("train", count), ("t10k", 64)):
            write_idx(corpus / f"{split}-images-idx3-ubyte", random.integers(0, 256, (size, 4, 4), np.uint8))
            write_idx(corpus / f"{split}-labels-idx1-ubyte", random.integers(0, 10, size, np.uint8))
    paths = (f"data.directory={corpus}", f"run_dir={run_dir}", f"cache_dir={directory / 'cache'}")
    command = [sys.executable, "-m", f"{framework}_impl.train", *TRAIN, *paths]
    subprocess.run(command, check=True, capture_output=True)
    prepared = json.loads((run_dir / "prepared.json").read_text())
    prepared["checkpoint"] = prepared["fingerprints"]["checkpoint"] = None  # a rank starts at the first step
    (run_dir / "prepared.json").write_text(json.dumps(prepared))
    return run_dir


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write bytes in IDX format: two zeros, the type of unsigned bytes, the axes, then their lengths."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(header + array.tobytes())


def measure_first_batch(framework: str, run_dir: Path) -> float:
    """Return the seconds from the start of a rank to its first batch."""
    code = f"FRAMEWORK = {framework!r}\n{RANK}"
    start = time.time()
    command = [sys.executable, "-c", code, "-", str(run_dir)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    # A rank ends when its standard input closes.
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        lines = [line for line in process.stdout if "first batch at" in line]
    if not lines:
        raise RuntimeError(f"{framework}: no first batch; try python -m {framework}_impl.launch {run_dir}")
    return float(lines[0].rpartition(" ")[2]) - start


if __name__ == "__main__":
    main()
