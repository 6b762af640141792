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
from tests.unit.common.config.conftest import ErrorLine
from tests.unit.common.config.test_schema import MANDATORY

FILES = ["data=files", "data.train=x", "data.validation=x"]


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
def test_choices_have_the_settings_of_their_kind(make_config: MakeConfig, choice: str, kind: type) -> None:
    assert type(make_config(f"data={choice}", *MANDATORY.get(f"data={choice}", [])).data) is kind


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data.train_examples=2"], "data.train_examples=2: must be at least 3"),
        (["data.validation_examples=2"], "data.validation_examples=2: must be at least 3"),
        ([*FILES, "data.classes=[]"], "data.classes: name each class once, or set it to null"),
        ([*FILES, "data.classes=[a,b,a]"], "data.classes: name each class once, or set it to null"),
        (
            ["data=arrays", "data.train=x", "data.validation=x", "data.weight=labels"],
            "data.weight=labels: is data.label too; name another array, or set it to null",
        ),
    ],
)
def test_wrong_values_are_refused(error_line: ErrorLine, overrides: list[str], expected: str) -> None:
    assert error_line(*overrides).startswith(expected)
