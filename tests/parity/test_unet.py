"""A U-Net that moves between the frameworks in the middle of its training. `make bench-parity` runs it, for minutes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from common.compare.verdict import compare_runs
from tests.parity.test_parity import TOLERANCES, find_violations

pytestmark = pytest.mark.bench

STRATEGIES = {"torch": ("strategy=ddp", "strategy.replicas=3"), "tf": ("strategy=mirrored", "strategy.replicas=2")}
JITTER, NORMALIZE = "{color_jitter: {brightness: 0.2, contrast: 0.2}}", "{normalize: {mean: [0.5], std: [0.3]}}"
SETTINGS = (
    "model=custom",
    "model.torch=benchmarks.zoo.unet_torch:unet_transposed",
    "model.tf=benchmarks.zoo.unet_keras:unet_transposed",
    "model.sync_batch_norm=true",
    "data=arrays",
    "data.channels=[images]",
    f"data.transforms=[{{random_crop: 2}}, horizontal_flip, {JITTER}, {NORMALIZE}]",
    "task.class_weights=[1,2,2,2,2,2,2,2,2,0.5]",
    "optimizer=rmsprop",
    "optimizer.learning_rate=0.001",
    "schedule=polynomial",
    "ema.decay=0.95",
    "metrics=[iou]",
    "train.evaluate_both=true",
    "train.global_batch_size=14",
    "train.steps=100",
    "train.eval_every=50",
    "train.checkpoint_every=50",
    "train.precision=float64",
)


def write_images(directory: Path) -> None:
    """Write images of digits, float32 [n, 32, 32, 3], and the brightness of each pixel as its class."""
    brightness = np.kron(load_digits().images / 16, np.ones((1, 4, 4)))
    images = np.stack([brightness, brightness**2, 1 - brightness], -1).astype(np.float32)
    labels = np.minimum(brightness * 10, 9).astype(np.int64)
    for name, rows in (("train", slice(0, 300)), ("validation", slice(1500, 1540))):
        np.savez(directory / f"{name}.npz", images=images[rows], labels=labels[rows])


def train(framework: str, run_dir: Path, *overrides: str) -> None:
    base = run_dir.parent
    data = (f"data.train={base / 'train.npz'}", f"data.validation={base / 'validation.npz'}", f"cache_dir={base}/cache")
    command = [sys.executable, "-m", f"{framework}_impl.train", f"run_dir={run_dir}", *data, *SETTINGS]
    subprocess.run([*command, *STRATEGIES[framework], *overrides], check=True)


def test_a_unet_is_resumed_in_the_other_framework(tmp_path: Path) -> None:
    write_images(tmp_path)
    for framework in STRATEGIES:
        train(framework, tmp_path / framework)
    for framework, other in (("torch", "tf"), ("tf", "torch")):
        checkpoint = tmp_path / other / "checkpoints" / "step-00000050"
        train(framework, tmp_path / f"{other}-{framework}", f"resume={checkpoint}")
    names = ("torch", "tf", "torch-tf", "tf-torch")
    comparison = compare_runs([tmp_path / name for name in names], TOLERANCES)
    assert comparison.verdict == "lockstep"
    assert [pair.steps for pair in comparison.pairs] == [100] * 6
    assert {"iou", "average_iou"} <= comparison.pairs[0].metric_differences.keys()
    assert not [violation for pair in comparison.pairs for violation in find_violations(pair)]
