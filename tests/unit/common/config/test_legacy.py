from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from common.config.compose import collect_values
from common.config.legacy import upgrade_values
from common.config.schema import collect_keys
from tests.conftest import ROOT, MakeConfig

FIXTURES = ROOT / "tests" / "fixtures"
# Of the first edition: `cluster=local` had the keys of hosts too.
DROPPED = {"cluster.hosts", "cluster.node", "cluster.port"}


def flat(path: Path) -> dict[str, Any]:
    """The values of a config.yaml by full name."""

    def flatten(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in section.items():
            found |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
        return found

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
def test_a_run_of_the_first_edition(make_config: MakeConfig, name: str, kind: str, keys: dict[str, Any]) -> None:
    found = upgrade_values(flat(FIXTURES / f"first-edition-{name}" / "config.yaml"))
    assert found.keys() - collect_keys().keys() == set()
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
    assert expected.items() <= found.items()
    today = collect_values(make_config(f"strategy={kind}"))
    added = {"extensions", "trackers", "train.checkpoint_seconds", "train.compile", "train.padding", "train.profile"}
    assert found.keys() - DROPPED == today.keys() - added


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"data.name": "mnli", "model.checkpoint": "x"}, {"data.kind": "hub", "model.kind": "pretrained"}),
        ({"data.name": "mnist", "model.channels": [1, 2]}, {"data.kind": "hub_images", "model.kind": "convnet"}),
        ({"data.name": "files", "model.layers": 2}, {"data.kind": "files", "model.kind": "bert"}),
    ],
)
def test_kinds_that_had_no_key(old: dict[str, Any], new: dict[str, Any]) -> None:
    found = upgrade_values({"optimizer.name": "sgd", **old})
    assert new.items() <= found.items() and "data.name" not in found
    assert found["optimizer.kind"] == "sgd"


@pytest.mark.parametrize(("rate", "semantics"), [(0.0, "aligned"), (0.1, "native")])
def test_dropout_was_native(rate: float, semantics: str) -> None:
    for edition in ({"optimizer.name": "sgd"}, {"optimizer.kind": "sgd"}):
        assert upgrade_values({**edition, "model.dropout": rate})["model.dropout_semantics"] == semantics
    today = {"optimizer.kind": "sgd", "model.dropout": rate, "model.dropout_semantics": "native"}
    assert upgrade_values(today)["model.dropout_semantics"] == semantics
    assert upgrade_values({**today, "model.dropout_semantics": "aligned"})["model.dropout_semantics"] == "aligned"


def test_todays_keys_stay_as_they_are(make_config: MakeConfig) -> None:
    today = collect_values(make_config("model=convnet", "data=mnist"))
    assert upgrade_values(today) == today
    once = upgrade_values(flat(FIXTURES / "first-edition-torch-ddp" / "config.yaml"))
    assert upgrade_values(once) == once
