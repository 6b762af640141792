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
    assert a.title == "A (torch ddp)"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "a: has no value; give a=torch:ddp or another strategy"),
        (["a=torch:ddp"], "b: has no value; give b=torch:ddp"),
        (["a=torch:ddp", "b=jax:ddp"], "b=jax:ddp: must be torch:STRATEGY or tf:STRATEGY"),
        (["a=torch:ddp", "b=tf:ddp"], "b=tf:ddp: no such strategy of tf; there are single, mirrored"),
        (["a=torch:ddp", "b=tf:single", "steps=1"], "steps=1: must be 2 to 100"),
        (["a=torch:ddp", "b=tf:single", "steps=x"], "steps: "),
        (["runs"], "runs: give two run directories, or a=torch:ddp b=tf:mirrored"),
        (["no", "run"], "no: not a finished run; give two run directories"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], error: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_arguments(arguments)
    assert str(raised.value).startswith(error), raised.value
