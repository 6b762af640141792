"""The arguments of common.diagnose."""

import pytest

from common.diagnose.arguments import parse_arguments
from common.errors import UserError


def test_keys_of_one_side_and_of_both() -> None:
    settings, (a, b) = parse_arguments(
        ["a=torch:ddp", "b=tf:mirrored", "strategy.replicas=2", "b.train.seed=3", "steps=4", "train.steps=90"]
    )
    assert settings.steps == 4
    assert (a.framework, a.strategy, b.framework, b.strategy) == ("torch", "ddp", "tf", "mirrored")
    assert "strategy.replicas=2" in a.overrides and "strategy.replicas=2" in b.overrides
    assert "train.seed=3" in b.overrides and "train.seed=3" not in a.overrides
    assert {"train.steps=4", "schedule.total_steps=90", "train.precision=float64"} <= set(a.overrides)
    assert settings.precision == "float64"
    assert a.title == "A (torch ddp)"


def test_both_sides_train_in_one_precision_unless_one_has_its_own() -> None:
    pair = ["a=torch:ddp", "b=tf:mirrored"]
    for arguments in (["precision=float32"], ["precision=float32", "train.precision=float32"]):
        _, (a, b) = parse_arguments([*pair, *arguments])
        assert [each for each in a.overrides if each.startswith("train.precision")] == ["train.precision=float32"]
        assert [each for each in b.overrides if each.startswith("train.precision")] == ["train.precision=float32"]
    _, (a, b) = parse_arguments([*pair, "b.train.precision=bfloat16"])
    assert "train.precision=float64" in a.overrides and "train.precision=bfloat16" in b.overrides


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "a: has no value; give a=torch:ddp or another strategy"),
        (["a=torch:ddp"], "b: has no value; give b=torch:ddp"),
        (["a=torch:ddp", "b=jax:ddp"], "b=jax:ddp: must be torch:STRATEGY or tf:STRATEGY"),
        (["a=torch:ddp", "b=tf:ddp"], "b=tf:ddp: no such strategy of tf; there are single, mirrored"),
        (["a=torch:ddp", "b=tf:single", "steps=1"], "steps=1: must be 2 to 100"),
        (["a=torch:ddp", "b=tf:single", "steps=x"], "steps: "),
        (["a=torch:ddp", "b=tf:single", "precision=half"], "precision=half: must be one of float64, float32, bfloat16"),
        (
            ["a=torch:ddp", "b=tf:single", "train.precision=float32"],
            "train.precision=float32: both sides train in precision=float64; give precision=float32",
        ),
        (
            [
                "a=torch:ddp",
                "b=tf:single",
                "precision=bfloat16",
                "a.train.precision=float32",
                "b.train.precision=float32",
            ],
            "train.precision=float32: both sides train in precision=bfloat16; give precision=float32",
        ),
        (["runs"], "runs: give two run directories, or a=torch:ddp b=tf:mirrored"),
        (["no", "run"], "no: not a finished run; give two run directories"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], error: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_arguments(arguments)
    assert str(raised.value).startswith(error), raised.value
