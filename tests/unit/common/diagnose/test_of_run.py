"""A run's config as overrides, which compose the same config again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.config.compose import parse, save, values_of
from common.diagnose.of_run import arguments_of
from tests.conftest import Compose

CHOICES = {
    "bert": ("strategy=ddp", "model=bert_mini", "optimizer.weight_decay=0.02", "train.seed=7"),
    "convnet": ("strategy=mirrored", "model=convnet", "schedule=cosine", "schedule.warmup_steps=3"),
    "custom": (
        "strategy=parameter_server",
        "strategy.max_staleness=0",
        "model=custom",
        "model.torch=my_models:build",
        "+model.arguments.width=3",
        "+model.arguments.name='a b'",
        "data=arrays",
        "data.train='my=data/train.npz'",
        "data.validation=v.npz",
        "data.channels=[images]",
        "task=regression",
    ),
    "files": (
        "data=files",
        "data.train='a, b.csv'",
        "data.validation=v.csv",
        "optimizer=sgd",
        "optimizer.momentum=null",
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_same_config_is_composed(name: str, composed: Compose, tmp_path: Path) -> None:
    config = parse(composed(*CHOICES[name]))
    save(config, tmp_path / "config.yaml")
    (tmp_path / "summary.json").write_text(json.dumps({"framework": "tf"}))
    side, overrides = arguments_of(tmp_path)
    assert side == f"tf:{config.strategy.kind}"
    again = parse(composed(f"strategy={config.strategy.kind}", *overrides))
    assert values_of(replace(again, train=config.train)) == values_of(config)
    assert again.train.seed == config.train.seed and again.train.global_batch_size == config.train.global_batch_size
