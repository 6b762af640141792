from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from common.config.compose import collect_values
from common.config.legacy import upgrade_values
from common.config.schema import collect_keys
from tests.conftest import ROOT, MakeConfig

FIXTURES = ROOT / "tests" / "fixtures"
# In the first edition `cluster=local` had the keys of `cluster=hosts`, too.
DROPPED = {"cluster.hosts", "cluster.node", "cluster.port"}


def read_values(path: Path) -> dict[str, Any]:
    """Return the values of a config.yaml by their full names."""

    def flatten(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in section.items():
            values |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
        return values

    values = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(values, dict)
    return flatten(values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kind", "keys"),
    [
        ("torch-ddp", "ddp", {"strategy.bucket_cap_mb": 25.0, "strategy.accumulate": 1}),
        ("tf-multiworker", "multiworker", {"strategy.communication": "auto"}),
    ],
)
def test_configs_of_the_first_edition_are_upgraded(
    make_config: MakeConfig, name: str, kind: str, keys: dict[str, Any]
) -> None:
    values = upgrade_values(read_values(FIXTURES / f"first-edition-{name}" / "config.yaml"))
    assert values.keys() <= collect_keys().keys()
    expected = {
        "data.kind": "builtin_nli",
        "model.kind": "bert",
        "model.name": "bert_tiny",
        "optimizer.kind": "adamw",
        "schedule.kind": "linear",
        "strategy.kind": kind,
        "strategy.replicas": 2,
        "cluster.kind": "local",
        **keys,
    }
    assert expected.items() <= values.items()
    today = collect_values(make_config(f"strategy={kind}"))
    added = {
        "extensions",
        "metrics",
        "python",
        "trackers",
        "train.checkpoint_gather_bytes",
        "train.checkpoint_seconds",
        "train.micro_batches",
        "train.compile",
        "train.device",
        "train.evaluate_both",
        "train.padding",
        "train.predictions",
        "train.profile",
    }
    assert values.keys() - DROPPED == today.keys() - added


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"data.name": "mnli", "model.checkpoint": "x"}, {"data.kind": "hub", "model.kind": "pretrained"}),
        ({"data.name": "mnist", "model.channels": [1, 2]}, {"data.kind": "hub_images", "model.kind": "convnet"}),
        ({"data.name": "files", "model.layers": 2}, {"data.kind": "files", "model.kind": "bert"}),
    ],
)
def test_kinds_without_a_key_are_recognized(old: dict[str, Any], new: dict[str, Any]) -> None:
    values = upgrade_values({"optimizer.name": "sgd", **old})
    assert new.items() <= values.items() and "data.name" not in values
    assert values["optimizer.kind"] == "sgd"


@pytest.mark.parametrize(("rate", "semantics"), [(0.0, "aligned"), (0.1, "native")])
def test_dropout_of_old_configs_is_native(rate: float, semantics: str) -> None:
    for edition in ({"optimizer.name": "sgd"}, {"optimizer.kind": "sgd"}):
        assert upgrade_values({**edition, "model.dropout": rate})["model.dropout_semantics"] == semantics
    today = {"optimizer.kind": "sgd", "model.dropout": rate, "model.dropout_semantics": "native"}
    assert upgrade_values(today)["model.dropout_semantics"] == semantics
    assert upgrade_values({**today, "model.dropout_semantics": "aligned"})["model.dropout_semantics"] == "aligned"


def test_current_values_do_not_change(make_config: MakeConfig) -> None:
    today = collect_values(make_config("model=convnet", "data=mnist"))
    assert upgrade_values(today) == today
    once = upgrade_values(read_values(FIXTURES / "first-edition-torch-ddp" / "config.yaml"))
    assert upgrade_values(once) == once


@pytest.mark.parametrize(
    ("task", "added"),
    [
        ({}, {"task.kind": "classification", "task.loss": "cross_entropy", "task.ignore_label": -100}),
        ({"task.kind": "binary"}, {"task.loss": "cross_entropy", "task.ignore_label": None, "task.alpha": None}),
        ({"task.kind": "regression", "task.loss": "mae"}, {"task.loss": "mae", "task.quantile": 0.5}),
    ],
)
def test_tasks_get_the_losses_that_they_had(
    make_config: MakeConfig, task: dict[str, Any], added: dict[str, Any]
) -> None:
    values = upgrade_values({"optimizer.kind": "sgd", **task})
    assert added.items() <= values.items()
    custom = ("model=custom", "model.torch=a:b", "data=arrays", "data.train=t.npz", "data.validation=v.npz")
    today = collect_values(make_config(*custom, f"task={values['task.kind']}"))
    assert {name for name in today if name.startswith("task.")} <= {*values, "task.delta"}
