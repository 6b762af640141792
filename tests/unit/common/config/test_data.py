import pytest

from common.config.data import (
    ArraysSettings,
    BuiltinNliSettings,
    DigitsSettings,
    FilesSettings,
    HubImagesSettings,
    HubSettings,
    IdxSettings,
    LinesSettings,
)
from tests.conftest import MakeConfig
from tests.unit.common.config.conftest import Said
from tests.unit.common.config.test_schema import MANDATORY


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        ("builtin_nli", BuiltinNliSettings),
        ("files", FilesSettings),
        ("hub", HubSettings),
        ("mnli", HubSettings),
        ("digits", DigitsSettings),
        ("mnist", HubImagesSettings),
        ("idx", IdxSettings),
        ("arrays", ArraysSettings),
        ("lines", LinesSettings),
    ],
)
def test_kinds_of_data(make_config: MakeConfig, choice: str, kind: type) -> None:
    assert type(make_config(f"data={choice}", *MANDATORY.get(f"data={choice}", [])).data) is kind


@pytest.mark.parametrize("classes", ["[]", "[a,b,a]"])
def test_classes_are_named_once(said: Said, classes: str) -> None:
    data = ("data=files", "data.train=x", "data.validation=x")
    assert said(*data, f"data.classes={classes}").startswith("data.classes: name each class once, or set it to null")


def test_weights_are_not_the_labels(said: Said) -> None:
    data = ("data=arrays", "data.train=x", "data.validation=x", "data.weight=labels")
    assert said(*data) == "data.weight=labels: is data.label too; name another array, or set it to null"


def test_limits(said: Said) -> None:
    assert said("data.train_examples=2").startswith("data.train_examples=2: must be at least 3")
    assert said("data.validation_examples=2").startswith("data.validation_examples=2: must be at least 3")
