import pytest

from tests.unit.common.config.conftest import ErrorLine

KERAS = ["model.keras=c:d"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.hidden_act=swish"], "model.hidden_act=swish: no such choice; there are gelu, "),
        (["train.max_length=513"], "train.max_length=513: beyond the model's 512 positions; lower it"),
        (["model.dropout=1"], "model.dropout=1.0: must be at least 0 and less than 1"),
        (["model.heads=3"], "model.heads=3: must divide model.hidden_size=128"),
        (["model.max_vocabulary=99"], "model.max_vocabulary=99: must be at least 100"),
        (["model=convnet", "model.channels=[10]"], "model.channels=[10]: must be two numbers, each at least 1"),
        (["model=convnet", "model.channels=[10,0]"], "model.channels=[10, 0]: must be two numbers, each at least 1"),
        (["model=convnet", "model.kernel_size=4"], "model.kernel_size=4: must be odd and at least 1"),
        (["model=convnet", "model.kernel_size=-1"], "model.kernel_size=-1: must be odd and at least 1"),
        (["model=convnet", "model.hidden_size=0"], "model.hidden_size=0: must be at least 1"),
        (
            ["model=custom", "data=arrays", "data.train=t.npz", "data.validation=v.npz", *KERAS, "model.torch=a:b"],
            "model.keras=c:d: makes the models of both sides; remove it or model.torch=a:b",
        ),
        (
            ["model=custom", "data=arrays", "data.train=t.npz", "data.validation=v.npz", *KERAS, "model.tf=a:b"],
            "model.keras=c:d: makes the models of both sides; remove it or model.tf=a:b",
        ),
    ],
)
def test_wrong_values_are_refused(error_line: ErrorLine, overrides: list[str], expected: str) -> None:
    assert error_line(*overrides).startswith(expected)
