"""A user's own model: what is refused, what is built again, and where its initial weights come from."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from common.config.schema import Config
from common.errors import UserError
from common.map.side import Side
from common.models import custom
from common.models.initial_weights import InitialCheckpoint
from common.run.prepare import prepare_inputs
from tests.conftest import MakeConfig, Python
from tests.unit.common.models.conftest import equal

HERE = "tests.unit.common.models"
TORCH, KERAS = f"model.torch={HERE}.custom_torch:{{}}", f"model.tf={HERE}.custom_keras:{{}}"
STREAM = np.random.default_rng(0)
ARRAYS = {"x": STREAM.standard_normal((12, 5)).astype(np.float32), "labels": np.arange(12) % 3}
MASK = {"mask": STREAM.integers(0, 2, (12, 5))}
Configured = Callable[..., Config]
Sides = dict[str, Side]

REFUSED = {  # models, more arrays, what the error says
    "an array that is not taken": (("plain", None), MASK, r"model.torch: takes no input mask, which the data has; "),
    "Keras's array that is not taken": (
        (None, "masked"),
        {**MASK, "y": ARRAYS["x"]},
        r"model.tf: takes no input y, .* mask$",
    ),
    "an argument that is no array": (("two_inputs", None), {}, r"raised TypeError: .* argument: 'missing'"),
    "two outputs": (("two_outputs", None), {}, r"returns output\[0\], output\[1\]; return one tensor, or a mapping"),
    "layers of the first call": ((None, "late"), {}, r"its forward pass raised ValueError: .*`__init__\(\)` method"),
    "dropout between layers": (
        ("stacked", None),
        {},
        r"^model.torch: the dropout of lstm \(LSTM\) cannot be aligned; write a dropout layer of its own, or set ",
    ),
    "another activation": (("plain", "tanh"), {}, r"are not the same: .* look between hidden .* and it"),
}
MISTAKES = {  # keys, what the error says
    "no such map": (("model.map=no.yaml",), r"^model.map=no.yaml: no such file"),
    "unknown name": (("model.map={}/names.yaml",), r"names.yaml: dense/kernel: Keras's model has no such variable"),
    "no such checkpoint": (("model.checkpoint=no.pt",), r"^model.checkpoint=no.pt: no such file"),
    "kind of checkpoint": (("model.checkpoint={}/train.npz",), r"unknown kind of file; give .safetensors"),
    "no checkpoint": (("model.checkpoint={}/no.safetensors",), r"no.safetensors: cannot be read"),
    "argument": (
        ("++model.arguments.colour=1",),
        r"plain: raised TypeError: .*unexpected keyword argument 'colour'",
    ),
    "classes": (("++model.arguments.classes=7",), r"returns \[n, 7\]; task=classification needs \[n, 3\]"),
}


@pytest.fixture(scope="module")
def processes() -> Iterator[Sides]:
    with Side("torch_impl") as torch, Side("tf_impl") as keras:
        yield {"torch_impl": torch, "tf_impl": keras}


@pytest.fixture
def shared(processes: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process of each framework for many models."""

    def found(package: str) -> AbstractContextManager[Side]:
        return nullcontext(processes[package])

    monkeypatch.setattr(custom, "Side", found)


@pytest.fixture
def configured(make_config: MakeConfig, tmp_path: Path) -> Configured:
    """A config of two models and the arrays above."""

    def make(
        torch: str | None, keras: str | None, *overrides: str, arrays: dict[str, np.ndarray] | None = None
    ) -> Config:
        for name in ("train", "validation"):
            np.savez(tmp_path / f"{name}.npz", **{**ARRAYS, **(arrays or {})})  # type: ignore[arg-type]
        models = [form.format(name) for form, name in ((TORCH, torch), (KERAS, keras)) if name]
        data = [f"data.{name}={tmp_path}/{name}.npz" for name in ("train", "validation")]
        return make_config("model=custom", "data=arrays", "task=classification", *models, *data, *overrides)

    return make


def initial(config: Config) -> InitialCheckpoint:
    return prepare_inputs(config, None)[1].initial


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_trained_is_refused(configured: Configured, name: str) -> None:
    models, arrays, said = REFUSED[name]
    with pytest.raises(UserError, match=said) as raised:
        initial(configured(*models, arrays=arrays))
    assert not set("\n\x1b") & set(str(raised.value))


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_key_is_an_error_of_one_line(configured: Configured, tmp_path: Path, name: str) -> None:
    overrides, said = MISTAKES[name]
    (tmp_path / "names.yaml").write_text("dense/kernel: hidden.weight\n")
    (tmp_path / "no.safetensors").write_text("nothing")
    side = "plain" if name == "unknown name" else None
    with pytest.raises(UserError, match=said) as raised:
        initial(configured("plain", side, *(each.format(tmp_path) for each in overrides)))
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("models", [("masked", "masked"), ("late", None), (None, "plain"), ("plain", "plain")])
def test_models_that_are_built(configured: Configured, models: tuple[str | None, str | None]) -> None:
    """An input may be called mask, and PyTorch's parameters may be made in the first call."""
    config = configured(*models, arrays=MASK if models[0] == "masked" else {})
    assert initial(config).weights()


def test_a_model_is_built_again_where_its_code_has_changed(
    configured: Configured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(5, {}), nn.Linear({}, 3))\n"
    (tmp_path / "changing.py").write_text(code.format(4, 4))
    config = configured(None, None, "model.torch=changing:build")
    first = initial(config)
    build = Mock(wraps=custom.build)
    monkeypatch.setattr(custom, "build", build)
    assert initial(config).directory == first.directory and build.call_count == 0
    (tmp_path / "changing.py").write_text(code.format(6, 6))
    second = initial(config)
    assert second.directory != first.directory and build.call_count == 1
    assert second.weights()["0.weight"].shape == (6, 5)
    (tmp_path / "changing.py").write_text(code.format(4, 4))
    assert initial(config).directory == first.directory and build.call_count == 1
    (tmp_path / "changing.py").unlink()
    with pytest.raises(UserError, match="no module changing"):
        initial(config)


WRITTEN = """
import sys
import numpy as np
from tests.unit.common.models.custom_{side} import plain
np.random.seed(3)
model = plain()
{save}
"""
SAVED = {
    "torch": """
import torch
from safetensors.torch import save_file
state = {name: torch.from_numpy(np.float32(np.random.randn(*each.shape))) for name, each in model.state_dict().items()}
torch.save(state, sys.argv[1] + '/saved.pt')
save_file(state, sys.argv[1] + '/saved.safetensors')
""",
    "keras": """
shapes = [(4, 5), (4,), (3, 4), (3,)]
model.set_weights([np.random.randn(*each).astype('float32').T for each in shapes])
model.save_weights(sys.argv[1] + '/saved.weights.h5')
model.save(sys.argv[1] + '/saved.keras')
""",
}


@pytest.mark.usefixtures("shared")
def test_a_checkpoint_of_either_framework_gives_the_same_weights(
    configured: Configured, python: Python, tmp_path: Path
) -> None:
    for side, save in SAVED.items():
        python(WRITTEN.format(side=side, save=save), str(tmp_path))
    found = {
        name: initial(configured("plain", "plain", f"model.checkpoint={tmp_path / name}")).weights()
        for name in ("saved.pt", "saved.safetensors", "saved.weights.h5", "saved.keras")
    }
    drawn = initial(configured("plain", "plain")).weights()
    for weights in found.values():
        assert equal(weights, found["saved.pt"]) == {"hidden.weight", "hidden.bias", "out.weight", "out.bias"}
        assert not equal(weights, drawn)


@pytest.mark.usefixtures("shared")
def test_a_checkpoint_of_another_model_is_refused(configured: Configured, python: Python, tmp_path: Path) -> None:
    python("import sys, torch; torch.save({'hidden.weight': torch.zeros(4, 6)}, sys.argv[1])", tmp_path / "saved.pt")
    with pytest.raises(UserError, match=r"saved.pt: hidden.weight has the shape \[4, 6\], the model's \[4, 5\]"):
        initial(configured("plain", None, f"model.checkpoint={tmp_path}/saved.pt"))
