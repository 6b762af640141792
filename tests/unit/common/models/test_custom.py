"""Initial checkpoints of a user's model: models that are refused, builds after a change of code, and stored weights."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from filelock import FileLock, Timeout

from common.config.resolve import resolve_config
from common.config.schema import Config
from common.data.arrays.array_cache import ArrayCache
from common.errors import UserError
from common.map.side import Side
from common.models import custom
from common.models.initial_weights import InitialCheckpoint
from common.run.prepare import prepare_inputs
from tests.conftest import MakeConfig, Python
from tests.unit.common.conftest import Sides
from tests.unit.common.models.conftest import list_equal_parameters

PACKAGE = "tests.unit.common.models"
TORCH, KERAS = f"model.torch={PACKAGE}.custom_torch:{{}}", f"model.tf={PACKAGE}.custom_keras:{{}}"
STREAM = np.random.default_rng(0)
ARRAYS = {"x": STREAM.standard_normal((12, 5)).astype(np.float32), "labels": np.arange(12) % 3}
MORE_ARRAYS = {"mask": STREAM.integers(0, 2, (12, 5)), "y": ARRAYS["x"]}
ConfigureModels = Callable[..., Config]

REFUSED = {  # the factories in PyTorch and Keras, the names of more arrays, the error
    "an unknown array": (("plain", None), ["mask"], r"model.torch: takes no input mask, which the data has; "),
    "an unknown array of Keras": ((None, "masked"), ["mask", "y"], r"model.tf: takes no input y, .* mask$"),
    "a missing array": (("two_inputs", None), [], r"raised TypeError: .* argument: 'missing'"),
    "two outputs": (("two_outputs", None), [], r"returns output\[0\], output\[1\]; return one tensor, or a mapping"),
    "layers of the first call": ((None, "late"), [], r"its forward pass raised ValueError: .*`__init__\(\)` method"),
    "dropout between layers": (
        ("stacked", None),
        [],
        r"^model.torch: lstm \(LSTM\) draws random numbers that cannot be aligned; make it a dropout or noise ",
    ),
    "a parameter that a pass changes": (
        ("damped", None),
        [],
        r"custom_torch:damped: parameter hidden\.weight changes in forward passes, which .*; make it a buffer, or",
    ),
    "a training step": (("Stepping", None), [], r"the model has a training_step, which .*; return the network in it"),
    "a loss for fit": (
        (None, "OwnLoss"),
        [],
        r"the model overrides compute_loss, which .*; return a model that does not override it, .*, and compute",
    ),
    "a loss for fit of a library's model": (
        (None, "functional_loss"),
        [],
        r"the model overrides compute_loss, which .*; return keras.Model\(model.inputs, model.outputs\), and compute",
    ),
    "a step that replaces fit's": ((None, "replaced_loss"), [], r"the model overrides train_step, which training does"),
    "a layer of a penalty": ((None, "penalized"), [], r"layer \S*penalty has an activity regularizer \(L1L2\), whose"),
    "a buffer that evaluations change": (
        ("evaluating", None),
        [],
        r"buffer centre changes in forward passes in evaluation mode, so .*; change it only in training mode",
    ),
    "a buffer that training creates": (
        ("creating", None),
        [],
        r"buffer centre is created by the first forward pass in training mode; create it with the model",
    ),
    "a buffer that grows": (
        ("growing", None),
        [],
        r"centre: forward passes change its shape from \[5\] to \[6\]; keep",
    ),
    "random numbers": (
        ("noisy", None),
        [],
        r"^model.torch: 1\.1 \(Noisy\) draws random numbers that cannot be",
    ),
    "random numbers of a layer with weights": (
        ("noisy_weights", None),
        [],
        r"^model.torch: 1 \(random numbers\) draws random numbers that cannot be",
    ),
    "a gradient hook": (
        ("clipped", None),
        [],
        r"parameter hidden\.weight has a gradient hook, which would see the grad",
    ),
    "a complex parameter": (
        ("trained_rotation", None),
        [],
        r"parameter rotation is complex, which .*; make it two real parameters",
    ),
    "an integer parameter": (
        ("parameter_of_indices", None),
        [],
        r"parameter order is of integers, which .*; make it a buffer",
    ),
    "SyncBatchNorm": (("synchronized", None), [], r"^model.torch: layer 1 uses .*; set model.sync_batch_norm=true"),
    "weights that are normalized": (("renormalized", None), [], r"layer table has max_norm, which changes the weights"),
    "counts of tokens": (("counted", None), [], r"layer table has scale_grad_by_freq, which counts the tokens"),
    "a regularizer": (
        (None, "regularized"),
        [],
        r"variable \S*middle/kernel has a regularizer \(L2\), whose loss train",
    ),
    "an activity regularizer": (
        (None, "active"),
        [],
        r"layer \S*middle has an activity regularizer \(L1\), whose loss ",
    ),
    "a constraint": (
        (None, "constrained"),
        [],
        r"middle/bias has a constraint \(NonNeg\), which training does not app",
    ),
    "a loss of the model": (
        (None, "with_loss"),
        [],
        r"custom_keras:with_loss: the model calls add_loss, whos",
    ),
    "a sum over replicas": (
        (None, "summed"),
        [],
        r"variable \S*counting/calls has aggregation='sum', so that .*; remove it",
    ),
    "noise of Keras": ((None, "noisy"), [], r"^model.tf: \S*noise \(random numbers\) draws random numbers that cannot"),
    "a counter": (("aging", None), [], r"custom_torch:aging: layer 1 returns something else when .*: it keeps a state"),
    "the same on one side": (
        ("plain", "regularized"),
        [],
        r"^model.tf=\S*regularized: variable \S*middle/kernel has a ",
    ),
    "another activation": (
        ("plain", "tanh"),
        [],
        r"are not the same: .* PyTorch computes .*, Keras .* after hidden .*, before that layer",
    ),
}
MISTAKES = {  # the override, the error
    "no such map": ("model.map=no.yaml", r"^model.map=no.yaml: no such file"),
    "unknown name": ("model.map={}/names.yaml", r"names.yaml: dense/kernel: Keras's model has no such variable"),
    "no such checkpoint": ("model.checkpoint=no.pt", r"^model.checkpoint=no.pt: no such file"),
    "kind of checkpoint": ("model.checkpoint={}/names.yaml", r"unknown kind of file; give a file of .safetensors"),
    "no checkpoint": ("model.checkpoint={}/no.safetensors", r"no.safetensors cannot be read"),
    "directory": ("model.checkpoint={}", r"^model.checkpoint=\S*: is a directory; give a file of .safetensors, .pt"),
    "directory with weights": (
        "model.checkpoint={}/exported",
        r": is a directory; give its file \S*/exported/model.safetensors$",
    ),
    "SavedModel": (
        "model.checkpoint={}/saved_model",
        r": is a TensorFlow SavedModel; give a file of .safetensors, .pt",
    ),
    "several state dicts": ("model.checkpoint={}/two.pt", r"two.pt: has several state dicts, model, ema; save one of"),
    "several models": ("model.checkpoint={}/both.pt", r"both.pt: has .* under each of student., teacher.; save one of"),
    "a tensor too many": ("model.checkpoint={}/more.pt", r"more.pt: has more.bias, which the model does not have; rem"),
    "no state dict": ("model.checkpoint={}/none.pt", r"none.pt: is not a state dict; save model.state_dict\(\)"),
    "a whole model": (
        "model.checkpoint={}/whole.pt",
        r"whole.pt: has objects other than tensors, or is damaged; save model.state_dict\(\)$",
    ),
    "another model": (
        "model.checkpoint={}/wide.pt",
        r"wide.pt: hidden.weight has the shape \[4, 6\], the model's \[4, 5\]",
    ),
    "no such module": ("model.torch=no_such_module:build", r"no module no_such_module"),
    "argument": ("++model.arguments.colour=1", r"plain: raised TypeError: .*unexpected keyword argument 'colour'"),
    "classes": ("++model.arguments.classes=7", r"returns \[n, 7\]; task=classification needs \[n, 3\]"),
}
LOSSES = {  # by the override of a loss function: the error
    f"task.torch={PACKAGE}.custom_torch:compute_losses": None,
    f"task.torch={PACKAGE}.custom_torch:compute_mean_loss": r"mean_loss: returns losses of shape \[\] for 4 examples",
    f"task.torch={PACKAGE}.custom_torch:compute_float32_losses": r"^task.torch: the loss function raised RuntimeError",
    f"task.torch={PACKAGE}.custom_torch:compute_number": r"^task.torch: the loss function returns float; return a",
    f"task.tf={PACKAGE}.custom_keras:compute_pair": r"^task.tf: the loss function returns tuple; return a tensor$",
    f"task.tf={PACKAGE}.custom_keras:compute_losses_of_two_traces": None,
    f"task.tf={PACKAGE}.custom_keras:compute_eager_losses": r"^task.tf: the loss function raised .* \(tests/unit/",
    f"task.tf={PACKAGE}.custom_keras:compute_mean_loss": r"mean_loss: returns losses of shape \[\] for 4 examples",
}
WRAPPED = ("module.pt", "compiled.pt", "inner.pt", "nested.pt", "lightning.pt", "tied.pt")
SAVE_KERAS = """
import sys
import numpy as np
from tests.unit.common.models.custom_keras import plain
np.random.seed(3)
model = plain()
model.set_weights([np.random.randn(*shape).astype('float32').T for shape in [(4, 5), (4,), (3, 4), (3,)]])
model.save_weights(sys.argv[1] + '/saved.weights.h5')
model.save(sys.argv[1] + '/saved.keras')
"""


@pytest.fixture
def shared_sides(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the models of all tests in one process of each framework."""

    def open_side(package: str, device: str) -> AbstractContextManager[Side]:
        return nullcontext(sides[package.removesuffix("_impl")])

    monkeypatch.setattr(custom, "Side", open_side)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the arrays and of the caches of all tests."""
    return tmp_path_factory.mktemp("custom")


@pytest.fixture
def configure(make_config: MakeConfig, directory: Path) -> ConfigureModels:
    """Make a config of two factories and of the arrays above."""

    def make(torch: str | None, keras: str | None, *overrides: str, more_arrays: list[str] | None = None) -> Config:
        names = more_arrays or []
        path = directory / "-".join(["x", *names, "labels.npz"])
        if not path.exists():
            np.savez(path, **ARRAYS, **{name: MORE_ARRAYS[name] for name in names})  # type: ignore[arg-type]
        models = [override.format(name) for override, name in ((TORCH, torch), (KERAS, keras)) if name]
        models += [] if "task=custom" in overrides else ["task=classification"]
        data = [f"data.train={path}", f"data.validation={path}", f"cache_dir={directory / 'cache'}"]
        return make_config("model=custom", "data=arrays", *models, *data, *overrides)

    return make


def save_torch_checkpoints(directory: Path) -> None:
    """Write checkpoints of PyTorch, whole ones and those with mistakes."""
    import torch
    from safetensors.torch import save_file

    from tests.unit.common.models.custom_torch import plain

    stream = np.random.RandomState(3)
    shapes = {name: tensor.shape for name, tensor in plain().state_dict().items()}
    state = {name: torch.from_numpy(np.float32(stream.randn(*shape))) for name, shape in shapes.items()}
    torch.save(state, directory / "saved.pt")
    save_file(state, directory / "saved.safetensors")
    save_file({name: tensor.bfloat16() for name, tensor in state.items()}, directory / "bfloat16.safetensors")
    slots = {"state": {0: {"step": torch.zeros(())}}, "param_groups": []}
    contents = {
        "wide": {"hidden.weight": torch.zeros(4, 6)},
        "two": {"model": state, "ema": state},
        "both": {f"{part}.{name}": tensor for name, tensor in state.items() for part in ("teacher", "student")},
        "more": {**state, "more.bias": torch.zeros(7)},
        "none": {"epoch": 3},
        "whole": plain(),
        "module": {f"module.{name}": tensor for name, tensor in state.items()},
        "compiled": {f"_orig_mod.module.{name}": tensor for name, tensor in state.items()},
        "inner": {name.replace(".", "._orig_mod."): tensor for name, tensor in state.items()},
        "nested": {"epoch": 3, "model": state, "optimizer": slots},
        "lightning": {"state_dict": {f"net.{name}": tensor for name, tensor in state.items()}, "global_step": 3},
        "tied": {**state, "copy.bias": state["out.bias"], "norm.num_batches_tracked": torch.tensor(3)},
        "scaled": {**state, "scale": torch.tensor(2.0)},
    }
    for name, content in contents.items():
        torch.save(content, directory / f"{name}.pt")


@pytest.fixture(scope="module")
def checkpoints(directory: Path, keras_python: Python) -> Path:
    """A directory of checkpoints that both frameworks have saved."""
    save_torch_checkpoints(directory)
    keras_python(SAVE_KERAS, directory)
    return directory


def open_initial(config: Config) -> InitialCheckpoint:
    return prepare_inputs(resolve_config(config), None)[1].initial


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize("override", LOSSES)
def test_a_loss_function_returns_one_loss_for_each_example(configure: ConfigureModels, override: str) -> None:
    factories = ("plain", None) if override.startswith("task.torch") else (None, "plain")
    config, message = configure(*factories, "task=custom", override), LOSSES[override]
    with nullcontext() if message is None else pytest.raises(UserError, match=message):
        open_initial(config)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
def test_a_loss_function_returns_one_loss_for_each_example_with_several_labels(
    configure: ConfigureModels, directory: Path
) -> None:
    path = directory / "labels_of_values.npz"
    x = np.asarray(ARRAYS["x"], np.float32)
    np.savez(path, x=x, labels=(x > 0).astype(np.int32))
    data = ("task=custom", f"data.train={path}", f"data.validation={path}")
    losses = f"task.torch={PACKAGE}.custom_torch:compute_losses"
    with pytest.raises(UserError, match=r"returns losses of shape \[4, 5\] for 4 examples; return one loss for each"):
        open_initial(configure("of_each_value", None, *data, losses))
    open_initial(configure("of_each_value", None, *data, f"{losses}_of_examples"))


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_be_trained_are_refused(configure: ConfigureModels, name: str) -> None:
    models, more_arrays, message = REFUSED[name]
    with pytest.raises(UserError, match=message) as raised:
        open_initial(configure(*models, more_arrays=more_arrays))
    assert not set("\n\x1b") & set(str(raised.value))


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
def test_a_class_for_each_value(configure: ConfigureModels, directory: Path) -> None:
    """The labels are checked again if the initial weights are there, but the task ignores another label."""
    path = directory / "classes.npz"
    x = np.asarray(ARRAYS["x"], np.float32)
    np.savez(path, x=x, labels=np.where(x > 0, x > 1, 255).astype(np.int32))
    data = (f"data.train={path}", f"data.validation={path}")
    hf_config = open_initial(configure("of_each_value", "of_each_value", *data, "task.ignore_label=255")).hf_config
    assert (hf_config["moved_axes"], hf_config["output_classes"]) == ({"torch": [1, -1], "tf": None}, 3)
    with pytest.raises(UserError, match="needs labels from 0 to 2, or task.ignore_label=-100, because .* has 255;"):
        open_initial(configure("of_each_value", "of_each_value", *data))
    weights = "task.class_weights=[1,2]"
    with pytest.raises(
        UserError, match=r"class_weights=\[1.0, 2.0\]: needs a number for each of the 3 classes of the m"
    ):
        open_initial(configure("of_each_value", "of_each_value", *data, "task.ignore_label=255", weights))


BUFFERS = {  # the factories in PyTorch and Keras, and the buffers that change: whether they depend on the examples
    "a moving average": (("centred", None), {"centre": True}),
    "a number of examples": (("counting", None), {"examples": True, "calls": False}),
    "vectors of spectral norm": (
        ("spectral", None),
        {f"0.parametrizations.weight.0.{name}": False for name in ("_u", "_v")},
    ),
    "the mean of all batches": (("averaging", None), {"1.num_batches_tracked": False}),
    "BatchNorm": (("normalized", None), {}),
    "a counter of Keras": ((None, "counting"), {"counting/calls": False}),
    "a moving average of Keras": ((None, "centred"), {"sequential/centred/moving_mean": True}),
    "Keras's spectral norm": (
        (None, "spectral"),
        {f"sequential/spectral/{name}": False for name in ("dense/kernel", "vector_u")},
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_that_passes_change_are_weights_of_a_kind(configure: ConfigureModels, name: str) -> None:
    factories, buffers = BUFFERS[name]
    initial = open_initial(configure(*factories, "strategy=single"))
    assert {re.sub("_[0-9]+/", "/", key): value for key, value in initial.hf_config["buffers"].items()} == buffers
    weights = initial.weights()
    assert initial.hf_config["buffers"].keys() <= weights.keys()
    assert all(
        array.dtype.kind == ("i" if key.endswith("calls") else array.dtype.kind) for key, array in weights.items()
    )


BUFFER_CHOICES = {  # the factory in PyTorch, overrides, and the error
    "several replicas": (
        "centred",
        ["strategy=ddp"],
        r"^model.buffers=equal: forward passes change centre depending on ",
    ),
    "average": ("centred", ["strategy=ddp", "model.buffers=average"], None),
    "the same in every replica": ("spectral", ["strategy=ddp"], None),
    "average of integers": (
        "counting",
        ["strategy=ddp", "model.buffers=average"],
        r"^model.buffers=average: examples has no mean, because its type is int64; make it a floating-point buffer, or",
    ),
    "accumulation": (
        "spectral",
        ["strategy=ddp", "train.micro_batches=2"],
        r"^train.micro_batches=2: every micro-batch would change 0.parametrizations.weight.0._u once more than",
    ),
    "another strategy": (
        "spectral",
        ["strategy=parameter_server"],
        r"^strategy=parameter_server: keeps no buffers that forward passes change \(0.param.*; choose one of sing",
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize("name", BUFFER_CHOICES)
def test_replicas_keep_buffers_equal_or_are_refused(configure: ConfigureModels, name: str) -> None:
    factory, overrides, message = BUFFER_CHOICES[name]
    with nullcontext() if message is None else pytest.raises(UserError, match=message):
        open_initial(configure(factory, None, *overrides))


MIXING = {  # the factories in PyTorch and Keras, and the layer that is named
    "time": (("FirstAxisIsTime", None), "model.torch: what out"),
    "capacity": (("Routed", None), "model.torch: what the model"),
    "statistics": (("Standardized", None), "model.torch: what out"),
    "statistics of Keras": ((None, "standardized"), r"model.tf: what \S*standardized"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize("name", MIXING)
def test_models_that_mix_examples_have_one_replica(configure: ConfigureModels, name: str) -> None:
    factories, layer = MIXING[name]
    strategy = "ddp" if factories[1] is None else "mirrored"
    open_initial(configure(*factories))
    with pytest.raises(UserError, match=f"^{layer} returns for an example depends on the other examples"):
        open_initial(configure(*factories, f"strategy={strategy}", "strategy.replicas=2"))


RESTRICTED = {  # the factories in PyTorch and Keras, and the parameter that is named, if there is one
    "a hook": (("clamped", None), r"torch: forward passes move hidden\.weight"),
    "zeros in a range": (("zero_scale", None), r"torch: forward passes move scale"),
    "at a limit": (("scale_at_limit", None), r"torch: forward passes move scale"),
    "a maximum": (("scale_below", None), r"torch: forward passes move scale"),
    "zeros of a mask": (("masked_scale", None), r"torch: forward passes move scale"),
    "a frozen parameter": (("frozen_scale", None), None),
    "a layer of Keras": ((None, "clipped"), r"tf: forward passes move \S*clipped/scale"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize("name", RESTRICTED)
def test_parameters_that_passes_restrict_are_no_copies(configure: ConfigureModels, name: str) -> None:
    factories, named = RESTRICTED[name]
    for strategy in ("single", "ddp") if factories[1] is None else ("single",):
        open_initial(configure(*factories, f"strategy={strategy}"))
    refusal = pytest.raises(UserError, match=f"^model.{named} back into a range, but strategy=parameter_server comp")
    with refusal if named else nullcontext():
        open_initial(configure(*factories, "strategy=parameter_server"))


MIXED_GRADIENTS = {  # the factories in PyTorch and Keras, and the parameter that is named, if there is one
    "normalized by the batch": (("normalized_gradient", None), r"torch: the gradient of hidden\.weight"),
    "clamped": (("clamped_gradient", None), r"torch: the gradient of hidden\.weight"),
    "normalized by the batch in Keras": ((None, "normalized_gradient"), r"tf: the gradient of \S*kernel"),
    "clamped in Keras": ((None, "clamped_gradient"), r"tf: the gradient of \S*kernel"),
    "no such gradient in Keras": ((None, "plain"), None),
    "sparse": (("sparse_gradient", None), None),
    "outputs of the batch's size": (("Trimmed", None), None),
    "no backward pass": (("UndefinedGradient", None), None),
    "sums in float32": (("SummedInFloat32", None), None),
}


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize("name", MIXED_GRADIENTS)
def test_gradients_that_mix_examples_have_one_replica(configure: ConfigureModels, name: str) -> None:
    factories, named = MIXED_GRADIENTS[name]
    strategy = "ddp" if factories[1] is None else "mirrored"
    open_initial(configure(*factories))
    refusal = pytest.raises(UserError, match=f"^model.{named} is not the sum of the gradients of the examples, or")
    with refusal if named else nullcontext():
        open_initial(configure(*factories, f"strategy={strategy}", "strategy.replicas=2"))


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize("side", ["torch", "tf"])
def test_losses_that_mix_examples_have_one_replica(configure: ConfigureModels, side: str) -> None:
    module, strategy = ("custom_torch", "ddp") if side == "torch" else ("custom_keras", "mirrored")
    factories = ("plain", None) if side == "torch" else (None, "plain")
    task = ("task=custom", f"task.{side}={PACKAGE}.{module}:compute_contrastive_losses")
    open_initial(configure(*factories, *task))
    with pytest.raises(UserError, match=f"^task.{side}: the loss of an example depends on the other examples"):
        open_initial(configure(*factories, *task, f"strategy={strategy}", "strategy.replicas=2"))


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_errors_of_one_line(configure: ConfigureModels, checkpoints: Path, name: str) -> None:
    override, message = MISTAKES[name]
    (checkpoints / "names.yaml").write_text("dense/kernel: hidden.weight\n")
    (checkpoints / "no.safetensors").write_text("nothing")
    for path in ("exported/model.safetensors", "saved_model/saved_model.pb"):
        (checkpoints / path).parent.mkdir(exist_ok=True)
        (checkpoints / path).write_text("")
    keras = "plain" if name == "unknown name" else None
    with pytest.raises(UserError, match=message) as raised:
        open_initial(configure("plain", keras, override.format(checkpoints)))
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize(
    "models",
    [("masked", "masked"), ("late", None), ("stepping_layer", None), (None, "unwrapped_loss"), ("plain", "plain")],
)
def test_models_are_built(configure: ConfigureModels, models: tuple[str | None, str | None]) -> None:
    """An input may have the name mask, and PyTorch's parameters may be created in the first call."""
    config = configure(*models, more_arrays=["mask"] if models[0] == "masked" else [])
    assert open_initial(config).weights()


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
def test_a_softmax_before_the_loss_is_named(configure: ConfigureModels, caplog: pytest.LogCaptureFixture) -> None:
    """A port of a Keras script often keeps its softmax. Both sides would then train with two, without a difference."""
    for _ in ("built", "cached"):
        open_initial(configure("softmax", "softmax"))
        warnings = [record.getMessage() for record in caplog.records if "takes logits" in record.getMessage()]
        assert [warning.partition("=")[0] for warning in warnings] == ["model.torch", "model.tf"]
        caplog.clear()
    open_initial(configure("plain", "plain", "train.seed=5"))
    assert "takes logits" not in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize(("keras", "batch"), [("reads_width", 5), ("reads_batch", 4)])
def test_keras_models_may_read_the_sizes_that_never_change(configure: ConfigureModels, keras: str, batch: int) -> None:
    assert open_initial(configure(None, keras, f"train.global_batch_size={batch}")).weights()


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize("override", ["train.global_batch_size=5", "strategy=parameter_server"])
def test_sizes_that_a_compiled_step_does_not_know_are_named(configure: ConfigureModels, override: str) -> None:
    message = (
        r"^model.tf=\S*reads_batch: its forward pass in a compiled step raised TypeError: unsupported operand "
        r"type\(s\) for \*: 'NoneType' and 'float' \(tests/unit/common/models/custom_keras.py, line \d+\); the step "
        r"does not know the size x.shape\[0\]: use keras.ops.shape$"
    )
    with pytest.raises(UserError, match=message):
        open_initial(configure(None, "reads_batch", override))


@pytest.mark.slow
def test_a_model_is_built_again_if_its_code_changes(
    configure: ConfigureModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = tmp_path / "changing.py"
    code = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(5, {}), nn.Linear({}, 3))\n"
    source.write_text(code.format(4, 4))
    config = configure(None, None, "model.torch=changing:build")
    first = open_initial(config)
    build = Mock(wraps=custom.build)
    monkeypatch.setattr(custom, "build", build)
    assert open_initial(config).directory == first.directory and build.call_count == 0
    source.write_text(code.format(6, 6))
    second = open_initial(config)
    assert second.directory != first.directory and build.call_count == 1
    assert second.weights()["0.weight"].shape == (6, 5)
    source.write_text(code.format(4, 4))
    assert open_initial(config).directory == first.directory and build.call_count == 1
    source.unlink()
    build.side_effect = UserError("no module changing")
    with pytest.raises(UserError, match="no module changing"):
        open_initial(config)


def test_of_several_processes_one_builds_a_model(
    configure: ConfigureModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a model is built, another process that needs it waits for a file lock."""

    def build(config: Config, cache: ArrayCache) -> custom.UserModel:
        (lock,) = Path(config.cache_dir).glob("custom-*.json.lock")
        with pytest.raises(Timeout):
            FileLock(lock).acquire(timeout=0)
        return custom.UserModel(
            {},
            {
                "shapes": {},
                "statistics": [],
                "mixing_layers": {},
                "probabilities": {},
                "norms_of_single_values": {},
                "sync_batch_norm": False,
                "mixed_gradients": {},
                "restricted": {},
                "buffers": {},
            },
            [],
        )

    monkeypatch.setattr(custom, "build", build)
    open_initial(configure("plain", None, f"cache_dir={tmp_path}"))


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
def test_checkpoints_of_both_frameworks_hold_the_same_weights(configure: ConfigureModels, checkpoints: Path) -> None:
    saved = {
        name: open_initial(configure("plain", "plain", f"model.checkpoint={checkpoints / name}")).weights()
        for name in ("saved.pt", "saved.safetensors", "saved.weights.h5", "saved.keras")
    }
    drawn = open_initial(configure("plain", "plain")).weights()
    parameters = {"hidden.weight", "hidden.bias", "out.weight", "out.bias"}
    for weights in saved.values():
        assert list_equal_parameters(weights, saved["saved.pt"]) == parameters
        assert not list_equal_parameters(weights, drawn)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
def test_state_dicts_of_wrapped_models_are_read(configure: ConfigureModels, checkpoints: Path) -> None:
    """Wrappers add prefixes, trainers save a state dict as one entry, and tied parameters have two names."""
    expected = open_initial(configure("plain", None, f"model.checkpoint={checkpoints / 'saved.pt'}")).weights()
    for name in WRAPPED:
        weights = open_initial(configure("plain", None, f"model.checkpoint={checkpoints / name}")).weights()
        assert list_equal_parameters(weights, expected) == expected.keys() == weights.keys(), name
    rounded = open_initial(configure("plain", None, f"model.checkpoint={checkpoints / 'bfloat16.safetensors'}"))
    for name, array in rounded.weights().items():
        np.testing.assert_allclose(array, expected[name], rtol=2**-8)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
def test_constants_of_a_checkpoint_are_those_of_the_model(configure: ConfigureModels, checkpoints: Path) -> None:
    checkpoint = f"model.checkpoint={checkpoints / 'scaled.pt'}"
    assert open_initial(configure("scaled", None, "++model.arguments.scale=2.0", checkpoint)).weights()
    with pytest.raises(UserError, match=r"scaled.pt: the buffer scale, which is not trained, has other values than "):
        open_initial(configure("scaled", None, checkpoint))


@pytest.mark.slow
@pytest.mark.usefixtures("shared_sides")
@pytest.mark.parametrize(
    ("model", "override"), [("synchronized", "model.sync_batch_norm=true"), ("rotated", "model.sync_batch_norm=false")]
)
def test_unusual_layers_and_buffers_are_accepted(configure: ConfigureModels, model: str, override: str) -> None:
    assert open_initial(configure(model, None, override)).weights()
