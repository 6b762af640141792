"""Config keys as earlier versions wrote them, under today's names: old runs and checkpoints stay readable."""

from collections.abc import Mapping
from typing import Any

RENAMED = {
    "data.name": "data.kind",
    "optimizer.name": "optimizer.kind",
    "schedule.name": "schedule.kind",
    "strategy.name": "strategy.kind",
    "strategy.workers": "strategy.replicas",
    "cluster.name": "cluster.kind",
}
ADDED = {  # keys that decide the curve, and what runs without them were
    "train.matmul_precision": None,
    "task.kind": "classification",
    "task.label_smoothing": 0.0,
    "task.class_weights": None,
}


def upgrade_values(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Flat keys of any version, as today's have them; keys of today's version stay as they are.

    The first edition distinguished the kinds of a group by `name`, and had `workers` beside `replicas`.
    """
    if "optimizer.name" not in flat:
        return ADDED | dict(flat) | _dropout(flat)
    found = ADDED | _dropout(flat) | {RENAMED.get(name, name): value for name, value in flat.items()}
    if found.get("data.kind") in ("mnli", "mnist"):
        found["data.kind"] = {"mnli": "hub", "mnist": "hub_images"}[found["data.kind"]]
    if "model.channels" in found:
        found["model.kind"] = "convnet"
    else:
        found["model.kind"] = "bert" if "model.layers" in found else "pretrained"
    return found


def _dropout(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dropout was native at first. Without dropout both semantics are the same, which is then called aligned."""
    semantics = flat.get("model.dropout_semantics", "native")
    without = semantics == "native" and "model.arguments" not in flat and not flat.get("model.dropout")
    return {"model.dropout_semantics": "aligned" if without else semantics}
