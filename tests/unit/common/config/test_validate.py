import pytest

from common.config import validate as validation
from common.config.schema import STRATEGIES, parse
from common.config.validate import check, validate
from common.errors import UserError, explain
from tests.conftest import Compose, MakeConfig


@pytest.mark.parametrize(
    ("gpus", "overrides", "replicas"),
    [
        (0, ["strategy=single"], 1),
        (4, ["strategy=single"], 1),
        (0, ["strategy=ddp"], 2),
        (1, ["strategy=ddp"], 1),
        (4, ["strategy=dp"], 4),
        (4, ["strategy=ddp", "strategy.replicas=3"], 3),
        (0, ["strategy=ddp", "strategy.replicas=16"], 16),
        (0, ["strategy=ddp", "strategy.replicas=3", "train.global_batch_size=3"], 3),
    ],
)
def test_replicas(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, gpus: int, overrides: list[str], replicas: int
) -> None:
    monkeypatch.setattr(validation, "visible_gpus", lambda: gpus)
    config = make_config(*overrides)
    validate(config, "torch")
    assert config.strategy.replicas == replicas


def test_more_replicas_than_gpus(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "visible_gpus", lambda: 2)
    with pytest.raises(UserError) as raised:
        validate(make_config("strategy=mirrored", "strategy.replicas=3"), "tf")
    assert str(raised.value) == (
        "strategy.replicas=3: more than the 2 visible GPU(s); lower it, or set CUDA_VISIBLE_DEVICES= (empty) "
        "to train on the CPU"
    )


# Bad input

TF = "single, mirrored, multiworker, central_storage, parameter_server"


def said(composed: Compose, framework: str, overrides: list[str]) -> str:
    """What a user reads of a config that cannot be run."""
    with pytest.raises(Exception) as raised:
        validate(parse(composed(*overrides)), framework)
    text = explain(raised.value, STRATEGIES[framework])
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("framework", "overrides", "expected"),
    [
        (
            "torch",
            ["strategy=horovod"],
            "strategy=horovod: no such choice; there are single, dp, ddp, allreduce, parameter_server",
        ),
        (
            "tf",
            ["strategy=horovod"],
            f"strategy=horovod: no such choice; there are {TF}",
        ),
        (
            "tf",
            ["strategy.name=horovod"],
            f"strategy=horovod: no such strategy; tf_impl has {TF}",
        ),
        (
            "torch",
            ["strategy=mirrored"],
            "strategy=mirrored: is TensorFlow's; run python -m tf_impl.train strategy=mirrored",
        ),
        ("tf", ["strategy=ddp"], "strategy=ddp: is PyTorch's; run python -m torch_impl.train strategy=ddp"),
        ("tf", ["strategy=dp"], "strategy=dp: is PyTorch's; run python -m torch_impl.train strategy=dp"),
    ],
)
def test_strategies_of_this_side_only(composed: Compose, framework: str, overrides: list[str], expected: str) -> None:
    assert said(composed, framework, overrides) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # a choice that there is not
        (
            ["model=bert_huge"],
            "model=bert_huge: no such choice; there are bert_base, bert_mini, bert_small, ",
        ),
        (["data=cifar"], "data=cifar: no such choice; there are builtin_nli, digits, files, hub, idx, mnist, mnli"),
        (["optimizer.name=lion"], "optimizer.name=lion: no such choice; there are adamw, adam, sgd"),
        (["optimizer.semantics=keras"], "optimizer.semantics=keras: no such choice; there are aligned, native"),
        (["schedule.name=step"], "schedule.name=step: no such choice; there are constant, linear, cosine"),
        (["train.precision=float16"], "train.precision=float16: no such choice; there are float32, bfloat16, float64"),
        (["model.hidden_act=swish"], "model.hidden_act=swish: no such activation; there are gelu, "),
        (
            ["data.name=cifar"],
            "data.name=cifar: no such kind of data; there are builtin_nli, files, hub, digits, mnist",
        ),
        # keys and types
        (["train.stepz=3"], "train.stepz: no such key here; "),
        (["+train.stepz=3"], "train.stepz: no such key here; "),
        (["model.checkpoint=x"], "model.checkpoint: no such key here; "),
        (["+data.train=x"], "data.train: no such key here; "),
        (["train.steps=many"], "train.steps: Value 'many' of type 'str' could not be converted to Integer"),
        (["train.steps=1.5"], "train.steps: Value '1.5' of type 'float' could not be converted to Integer"),
        (["train.steps=null"], "train.steps: "),
        (["optimizer.learning_rate=fast"], "optimizer.learning_rate: Value 'fast' of type 'str' could not"),
        (["data.seed=x"], "data.seed: Value 'x' of type 'str' could not be converted to Integer"),
        (["model.layers=two"], "model.layers: Value 'two' of type 'str' could not be converted to Integer"),
        (["train.steps"], "train.steps: "),
        (["data=files"], "data.train: has no value; give data.train=..."),
        (["data=files", "data.train=x"], "data.validation: has no value; give data.validation=..."),
        (["data=hub", "data.path=x"], "data.revision: has no value; give data.revision=..."),
        (["model=pretrained"], "model.checkpoint: has no value; give model.checkpoint=..."),
        (["model=convnet", "data=idx"], "data.directory: has no value; give data.directory=..."),
        # values
        (["strategy=ddp", "strategy.replicas=0"], "strategy.replicas=0: must be at least 1"),
        (["strategy=ddp", "strategy.replicas=-1"], "strategy.replicas=-1: must be at least 1"),
        (["strategy.replicas=2"], "strategy.replicas=2: strategy=single has 1; choose another strategy"),
        (
            ["strategy=ddp", "strategy.replicas=5", "train.global_batch_size=4"],
            "train.global_batch_size=4: smaller than the 5 replicas; raise it or lower strategy.replicas",
        ),
        (["train.steps=0"], "train.steps=0: must be at least 1"),
        (["train.epochs=0"], "train.epochs=0: must be at least 1"),
        (["train.global_batch_size=0"], "train.global_batch_size=0: must be at least 1"),
        (["train.seed=-1"], "train.seed=-1: must be at least 0"),
        (["train.log_every=0"], "train.log_every=0: must be at least 1"),
        (["train.eval_every=0"], "train.eval_every=0: must be at least 1"),
        (["train.max_length=2"], "train.max_length=2: must be at least 3"),
        (["train.max_length=513"], "train.max_length=513: beyond the model's 512 positions; lower it"),
        (["schedule.warmup_steps=-1"], "schedule.warmup_steps=-1: must be at least 0"),
        (["schedule.total_steps=0"], "schedule.total_steps=0: must be at least 1"),
        (["optimizer.learning_rate=-1"], "optimizer.learning_rate=-1.0: must be at least 0"),
        (["optimizer.learning_rate=nan"], "optimizer.learning_rate=nan: must be at least 0"),
        (["optimizer.weight_decay=-1"], "optimizer.weight_decay=-1.0: must be at least 0"),
        (["optimizer.beta1=1"], "optimizer.beta1=1.0: must be at least 0 and less than 1"),
        (["optimizer.beta2=null"], "optimizer.beta2=null: adamw needs a value"),
        (["optimizer=adam", "optimizer.epsilon=null"], "optimizer.epsilon=null: adam needs a value"),
        (["optimizer.max_grad_norm=0"], "optimizer.max_grad_norm=0.0: must be above 0, or null for no clipping"),
        (["model.dropout=1"], "model.dropout=1.0: must be at least 0 and less than 1"),
        (["model.heads=3"], "model.heads=3: must divide model.hidden_size=128"),
        (["model.max_vocabulary=99"], "model.max_vocabulary=99: must be at least 100"),
        (["model=convnet", "model.channels=[10]"], "model.channels=[10]: must be two numbers, each at least 1"),
        (["model=convnet", "model.channels=[10,0]"], "model.channels=[10, 0]: must be two numbers, each at least 1"),
        (["model=convnet", "model.kernel_size=4"], "model.kernel_size=4: must be odd and at least 1"),
        (["model=convnet", "model.kernel_size=-1"], "model.kernel_size=-1: must be odd and at least 1"),
        (["model=convnet", "model.hidden_size=0"], "model.hidden_size=0: must be at least 1"),
        # data that the model does not read
        (
            ["data=digits"],
            "data=digits: images, but model=bert_tiny reads text; set model=convnet or another data=",
        ),
        (
            ["model=convnet", "data=builtin_nli"],
            "data=builtin_nli: text, but model=convnet reads images; set data to one of digits, mnist, idx",
        ),
        (["data.train_examples=2"], "data.train_examples=2: must be at least 3"),
        (["run_name=a/b"], "run_name=a/b: a name without path separators; use run_dir=PATH for a place"),
        (["run_name='a\\b'"], "run_name=a\\b: a name without path separators"),
        (["run_name=' '"], "run_name= : a name without path separators"),
    ],
)
def test_bad_input(composed: Compose, overrides: list[str], expected: str) -> None:
    assert said(composed, "torch", overrides).startswith(expected)


def test_what_does_not_depend_on_the_framework(make_config: MakeConfig) -> None:
    config = make_config("strategy=mirrored", "train.global_batch_size=1")
    check(config)
    assert config.strategy.replicas is None
