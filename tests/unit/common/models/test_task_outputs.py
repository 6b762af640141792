"""Tests that the outputs of a model are those that the config names, and of the errors if it has none that fit."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.config.task_kinds import ContrastiveSettings, MultiOutputSettings
from common.config.tasks import TaskSettings
from common.data.cache import Cache
from common.data.splits.array_column import Column
from common.data.splits.multi_output_split import MultiOutputSplit, split_outputs
from common.errors import UserError
from common.models.label_checks import check_classes, check_labels
from common.models.task_outputs import describe_outputs
from tests.unit.reference_losses import CLASSIFICATION

KEYS = {"torch": "model.torch=a:b", "tf": "model.tf=a:c"}
LABELS = {"mask": np.zeros((4, 2, 3), np.int32), "group": np.array([0, 1, -100, 2], np.int32)}
NAMED = {"output.group": (4, 5), "output.mask": (4, 6, 2, 3), "output.other": (4, 1)}
LISTED = {"output[0]": (4, 5), "output[1]": (4, 2, 3, 6), "output[2]": (4, 1)}
PAIRS = ContrastiveSettings("contrastive", None, "cosine", 0.05, False)


def make_task(outputs: tuple[str | int, str | int] = ("mask", "group"), **group: object) -> MultiOutputSettings:
    """Return the task of the outputs mask and group. group: keys of the task of the second."""
    values = [asdict(CLASSIFICATION), {**asdict(CLASSIFICATION), **group}]
    names = zip(("mask", "group"), outputs, values, strict=True)
    return MultiOutputSettings(
        "multi_output",
        {name: {"output": output, "label": name, "weight": 1.0, **keys} for name, output, keys in names},
    )


def make_cache(task: TaskSettings, labels: dict[str, np.ndarray] = LABELS) -> Cache:
    columns = {name: Column(array) for name, array in labels.items()}
    outputs = split_outputs(task, columns) if isinstance(task, MultiOutputSettings) else {}
    split = MultiOutputSplit({}, columns["mask"], None, task, outputs)
    return Cache(Path("cache"), "", split, split, [])


def make_config(task: TaskSettings) -> Any:
    data = SimpleNamespace(kind="arrays", train="t.npz", validation="v.npz")
    return SimpleNamespace(task=task, data=data)


def describe(task: TaskSettings, **shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    return describe_outputs(KEYS, make_config(task), make_cache(task), shapes, LABELS["mask"])


def test_outputs_of_a_list_are_in_the_order_of_a_dict() -> None:
    facts = describe(make_task(), torch=NAMED, tf=LISTED)
    assert facts["outputs"] == {"torch": ["output.mask", "output.group"], "tf": ["output[1]", "output[0]"]}
    assert facts["moved_axes"] == {"torch": [(1, -1), None], "tf": [None, None]}
    assert facts["output_classes"] == [6, 5]
    assert facts["output_layouts"] == [
        {"output": [2, 3, 6], "labels": [2, 3], "is_integer": True},
        {"output": [1, 5], "labels": [1], "is_integer": True},
    ]


def test_outputs_without_names_are_named_by_position_or_in_order() -> None:
    assert describe(make_task((1, 0)), tf=LISTED)["outputs"] == {"tf": ["output[1]", "output[0]"]}
    ordered = {"output[0]": LISTED["output[1]"], "output[1]": LISTED["output[0]"]}
    assert describe(make_task(), tf=ordered)["outputs"] == {"tf": ["output[0]", "output[1]"]}
    with pytest.raises(UserError, match=r"returns output\[0\], .*; task.outputs.mask.output=mask is not among them"):
        describe(make_task(), tf=LISTED)
    with pytest.raises(UserError, match=r"task.outputs.group.output=class is not among them; set it to a name"):
        describe(make_task(("mask", "class")), torch=NAMED)
    with pytest.raises(UserError, match=r"^model.torch=a:b, task.outputs.mask: returns \[n, 5\]; classification needs"):
        describe(make_task(("group", "mask")), torch=NAMED)


def test_outputs_of_the_same_names_are_paired_by_name() -> None:
    """The proof of the parameter map pairs them in the same way."""
    other_order = {"output.mask": (4, 2, 3, 6), "output.other": (4, 1), "output.group": (4, 5)}
    facts = describe(make_task(), torch=NAMED, tf=other_order)
    assert facts["outputs"] == {side: ["output.mask", "output.group"] for side in ("torch", "tf")}
    anchors, partners = {"output.a": (4, 8), "output.b": (4, 8)}, {"output.b": (4, 8), "output.a": (4, 8)}
    for task in (PAIRS, replace(PAIRS, embeddings=["a", "b"])):
        assert describe(task, torch=anchors, tf=partners)["outputs"] == {
            side: ["output.a", "output.b"] for side in ("torch", "tf")
        }
    fewer = {"output.group": (4, 5), "output.mask": (4, 2, 3, 6)}
    with pytest.raises(UserError, match=r"it is not known which outputs are output.mask; return the same names on bo"):
        describe(make_task(), torch=NAMED, tf=fewer)


def test_labels_of_an_output_are_checked() -> None:
    task = make_task(class_weights=[1.0, 2.0])
    check_labels(make_config(task), make_cache(task))
    with pytest.raises(
        UserError, match=r"^task.outputs.group.class_weights=.*: needs a number for each of the 5 classes"
    ):
        check_classes(make_config(task), make_cache(task), [6, 5])
    with pytest.raises(
        UserError, match=r"^data.train=t.npz: task.outputs.group needs labels from 0 to 1, or task.outputs"
    ):
        check_classes(make_config(make_task()), make_cache(make_task()), [6, 2])
    for keys, labels, error in (
        ({"loss": "dice"}, LABELS["group"], "task.outputs.group.loss=dice needs several labels"),
        ({}, LABELS["group"].astype(np.float32), "needs integer labels; these are float32"),
        (
            {},
            np.full(4, -100, np.int32),
            "task.outputs.group has no loss, because all labels are task.outputs.group.ig",
        ),
    ):
        wrong = make_task(("mask", "group"), **keys)
        with pytest.raises(UserError, match=error):
            check_labels(make_config(wrong), make_cache(wrong, {**LABELS, "group": labels}))
    ragged = make_cache(make_task())
    column = Column(np.zeros(6, np.int32), np.array([0, 1, 3, 4, 6]))
    outputs = split_outputs(make_task(), {"mask": Column(LABELS["mask"]), "group": column})
    with pytest.raises(UserError, match=r"task.outputs.group needs the same number of labels in each example"):
        check_labels(make_config(make_task()), replace(ragged, train=replace(ragged.train, outputs=outputs)))  # type: ignore[type-var]


def test_embeddings_are_all_outputs_or_those_of_the_config() -> None:
    shapes = {"output.a": (4, 8), "output.similarity": (4, 4), "output.b": (4, 8)}
    chosen = describe(replace(PAIRS, embeddings=["b", "a"]), torch=shapes)
    assert chosen["outputs"] == {"torch": ["output.b", "output.a"]}
    assert chosen["output_layouts"] == [{"output": [2, 8], "labels": [], "is_integer": True}]
    assert describe(PAIRS, tf={"output": (4, 3, 8)})["output_layouts"][0]["output"] == [3, 8]
    with pytest.raises(
        UserError, match=r"returns output.a \[n, 8\], .*; task=contrastive needs two or more embeddings"
    ):
        describe(PAIRS, torch=shapes)
    with pytest.raises(UserError, match=r"task.embeddings=\['c', 'a'\] are not all among them"):
        describe(replace(PAIRS, embeddings=["c", "a"]), torch=shapes)
    with pytest.raises(UserError, match="task=contrastive needs two or more embeddings"):
        describe(PAIRS, torch={"output": (4, 8)})
