"""Arguments of common.diagnose."""

import pytest

from common.diagnose.arguments import parse_arguments
from common.errors import UserError

PAIR = ["a=torch:ddp", "b=tf:mirrored"]


def test_keys_of_one_side_and_of_both() -> None:
    options, (a, b) = parse_arguments([*PAIR, "strategy.replicas=2", "b.train.seed=3", "steps=4", "train.steps=90"])
    assert (options.steps, options.precision) == (4, "float64")
    assert (a.framework, a.strategy, b.framework, b.strategy) == ("torch", "ddp", "tf", "mirrored")
    assert "strategy.replicas=2" in a.overrides and "strategy.replicas=2" in b.overrides
    assert "train.seed=3" in b.overrides and "train.seed=3" not in a.overrides
    assert {"train.steps=4", "schedule.total_steps=90", "train.precision=float64"} <= set(a.overrides)
    assert a.title == "A (torch ddp)"


def test_the_device_of_one_side_and_of_both() -> None:
    _, (a, b) = parse_arguments([*PAIR, "device=cpu", "b.device=cuda"])
    assert "train.device=cpu" in a.overrides
    assert [text for text in b.overrides if "device=" in text] == ["train.device=cpu", "train.device=cuda"]


@pytest.mark.parametrize(
    ("arguments", "precision_a", "precision_b"),
    [
        (["precision=float32"], "float32", "float32"),
        (["precision=float32", "train.precision=float32"], "float32", "float32"),
        (["b.train.precision=bfloat16"], "float64", "bfloat16"),
    ],
)
def test_both_sides_train_in_one_precision_unless_one_sets_its_own(
    arguments: list[str], precision_a: str, precision_b: str
) -> None:
    _, (a, b) = parse_arguments([*PAIR, *arguments])
    for side, precision in ((a, precision_a), (b, precision_b)):
        overrides = [override for override in side.overrides if override.startswith("train.precision")]
        assert overrides == [f"train.precision={precision}"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "a: has no value; set a=torch:ddp or another strategy"),
        (["a=torch:ddp"], "b: has no value; set b=torch:ddp"),
        (["a=torch:ddp", "b=jax:ddp"], "b=jax:ddp: must be torch:STRATEGY or tf:STRATEGY"),
        (["a=torch:ddp", "b=tf:ddp"], "b=tf:ddp: not a strategy of tf; use one of single, mirrored"),
        ([*PAIR, "steps=1"], "steps=1: must be 2 to 100"),
        ([*PAIR, "steps=x"], "steps: "),
        ([*PAIR, "precision=half"], "precision=half: must be one of float64, float32, bfloat16"),
        (
            [*PAIR, "train.precision=float32"],
            "train.precision=float32: both sides train in precision=float64; set precision=float32",
        ),
        (
            [*PAIR, "precision=bfloat16", "a.train.precision=float32", "b.train.precision=float32"],
            "train.precision=float32: both sides train in precision=bfloat16; set precision=float32",
        ),
        (["runs"], "runs: pass two run directories, or a=torch:ddp b=tf:mirrored"),
        (["no", "run"], "no: not a finished run; pass two run directories, two records of scripts, or a="),
    ],
)
def test_a_mistake_is_reported(arguments: list[str], error: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_arguments(arguments)
    assert str(raised.value).startswith(error), raised.value
