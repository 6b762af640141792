import math
from dataclasses import FrozenInstanceError, dataclass, fields

import pytest

from common.config.keys import CURVE, HOST, RUN, SOURCE, Key, find_section_schema, iterate_keys, key, list_keys, section
from common.config.schema import GROUPS, SECTIONS, RunOptions, collect_keys
from common.errors import UserError
from tests.conftest import MakeConfig

EXCEPTIONS = {  # keys with another scope than their group
    "model.name": SOURCE,
    "model.checkpoint": SOURCE,
    "model.revision": SOURCE,
    "model.torch": SOURCE,
    "model.tf": SOURCE,
    "model.keras": SOURCE,
    "model.map": SOURCE,
    "model.prove": RUN,
    "model.allow_unpaired": RUN,
    **dict.fromkeys(("data.channels", "data.transforms", "data.transform_evaluation"), CURVE),
    **dict.fromkeys(("data.stream", "data.stream_examples"), CURVE),
    "train.log_every": HOST,
    "train.profile": HOST,
    **dict.fromkeys(
        (
            "train.steps",
            "train.epochs",
            "train.eval_every",
            "train.checkpoint_every",
            "train.checkpoint_seconds",
            "train.checkpoint_gather_bytes",
            "train.keep_checkpoints",
            "train.virtual_epoch_examples",
            "train.early_stopping.patience",
            "train.early_stopping.min_delta",
            "train.early_stopping.metric",
            "train.max_restarts",
            "train.padding",
            "train.micro_batches",
            "train.device",
            "train.compile",
            "train.warmup_steps_untimed",
            "train.predictions",
            "train.evaluate_both",
            "metrics",
        ),
        RUN,
    ),
}
GROUP_SCOPES = {"data": SOURCE, "strategy": RUN, "cluster": HOST}


def test_scopes() -> None:
    """By default a key decides the curve in these groups: model, task, optimizer, schedule and train."""
    for name, declared in collect_keys().items():
        group, dot, _ = name.partition(".")
        expected = EXCEPTIONS.get(name, GROUP_SCOPES.get(group, CURVE if dot else HOST))
        assert declared.scope is (HOST if name == "data.allow_change" else expected), name
    assert EXCEPTIONS.keys() < collect_keys().keys()


def test_every_field_of_every_schema_is_a_key_or_a_section() -> None:
    schemas: list[type] = [
        RunOptions,
        *SECTIONS.values(),
        *(schema for kinds in GROUPS.values() for schema in kinds.values()),
    ]
    while schemas:
        schema = schemas.pop()
        for schema_field in fields(schema):
            if (section_schema := find_section_schema(schema_field)) is not None:
                schemas.append(section_schema)
            else:
                assert isinstance(schema_field.metadata.get("key"), Key), f"{schema.__name__}.{schema_field.name}"


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "words"),
    [
        ({"at_least": 1}, [1, 2, 10**9], [0, -1, math.inf, math.nan], "at least 1 and finite"),
        ({"at_least": 0, "below": 1}, [0, 0.5], [1, -0.1, math.nan], "at least 0 and less than 1"),
        ({"above": 0}, [1e-300, 5], [0, -1, math.inf], "above 0 and finite"),
        ({"above": 0, "finite": False}, [1, math.inf], [0, math.nan], "above 0"),
        ({"at_least": 1024, "at_most": 65000}, [1024, 65000], [1023, 65001], "at least 1024 and at most 65000"),
        ({}, [-1, 0, math.inf], [], ""),
    ],
)
def test_limits(limits: dict[str, float], inside: list[float], outside: list[float], words: str) -> None:
    limited_key = Key(CURVE, **limits)  # type: ignore[arg-type]
    assert limited_key.describe_limits() == words
    for value in inside:
        limited_key.check("group.name", value)
    for value in outside:
        with pytest.raises(UserError) as raised:
            limited_key.check("group.name", value)
        assert str(raised.value) == f"group.name={value}: must be {words}"


def test_errors_name_the_effect_of_null() -> None:
    with pytest.raises(UserError, match=r"^a.b=0: must be above 0 and finite, or null for no clipping$"):
        Key(CURVE, above=0, null="for no clipping").check("a.b", 0)


@pytest.mark.parametrize("value", [2**63, -(2**63), 10**400])
def test_whole_numbers_that_numpy_cannot_hold_are_refused(value: int) -> None:
    with pytest.raises(UserError, match=r"^train\.steps: must be less than 2\*\*63$"):
        Key(RUN, at_least=1).check("train.steps", value)


def test_choices() -> None:
    choice_key = Key(RUN, choices=("loss", "accuracy"))
    choice_key.check("a.b", "accuracy")
    with pytest.raises(UserError, match=r"^a.b=f1: no such choice; there are loss, accuracy$"):
        choice_key.check("a.b", "f1")


def test_description_of_a_key() -> None:
    assert Key(RUN, at_least=1, unit="steps").describe() == "at least 1 and finite; steps"
    assert Key(RUN, choices=("a", "b")).describe() == "a, b"
    assert Key(RUN).describe() == ""


@dataclass(frozen=True)
class Inner:
    depth: int = key(CURVE, at_least=1)


@dataclass(frozen=True)
class Outer:
    name: str = key(HOST)
    inner: Inner = section()


def test_full_names() -> None:
    assert [(name, declared.scope) for name, declared in list_keys(Outer, "outer.")] == [
        ("outer.name", HOST),
        ("outer.inner.depth", CURVE),
    ]
    assert [
        (name, declared.scope, value) for name, declared, value in iterate_keys(Outer("n", Inner(3)), "outer.")
    ] == [
        ("outer.name", HOST, "n"),
        ("outer.inner.depth", CURVE, 3),
    ]


def test_a_config_is_frozen(make_config: MakeConfig) -> None:
    config = make_config()
    for settings, name in ((config, "run_dir"), (config.train, "steps"), (config.train.early_stopping, "patience")):
        with pytest.raises(FrozenInstanceError):
            setattr(settings, name, 3)
