from dataclasses import replace

import pytest

from common.config.validate import check_config
from common.errors import UserError
from tests.conftest import MakeConfig
from tests.unit.common.config.conftest import ErrorLine

TF = "single, mirrored, multiworker, central_storage, parameter_server"

CYCLE = ("schedule=one_cycle", "schedule.cycle_momentum=true")
CUSTOM = ["model=custom", "model.torch=models:build", "model.sync_batch_norm=true", "data=arrays"]
CUSTOM += ["data.train=train.npz", "data.validation=validation.npz"]


@pytest.mark.parametrize(
    ("framework", "overrides", "expected"),
    [
        (
            "torch",
            ["strategy=horovod"],
            "strategy=horovod: no such choice; there are single, dp, ddp, allreduce, zero, fsdp, parameter_server",
        ),
        (
            "tf",
            ["strategy=horovod"],
            f"strategy=horovod: no such choice; there are {TF}",
        ),
        (
            "torch",
            ["strategy=mirrored"],
            "strategy=mirrored: a TensorFlow strategy; run it with python -m tf_impl.train strategy=mirrored",
        ),
        (
            "tf",
            ["strategy=ddp"],
            "strategy=ddp: a PyTorch strategy; run it with python -m torch_impl.train strategy=ddp",
        ),
        ("tf", ["strategy=dp"], "strategy=dp: a PyTorch strategy; run it with python -m torch_impl.train strategy=dp"),
        (
            "torch",
            ["strategy=dp", "train.compile=true"],
            "train.compile=true: not supported by PyTorch's strategy=dp; set it to false, or choose a strategy of "
            "single, ddp, allreduce, zero, parameter_server",
        ),
        (
            "tf",
            ["strategy=parameter_server", "train.compile=true"],
            "train.compile=true: not supported by TensorFlow's strategy=parameter_server; set it to false, or "
            "choose a strategy of single, mirrored, multiworker",
        ),
        (
            "tf",
            ["strategy=multiworker", "train.profile=true"],
            "train.profile=true: TensorFlow's profiler may crash with strategy=multiworker; set it to false",
        ),
        (
            "torch",
            ["strategy=fsdp", "optimizer=muon"],
            "optimizer.kind=muon: needs whole parameters, but a rank of strategy=fsdp has parts of them; choose "
            "strategy=zero or ddp, or another optimizer",
        ),
        (
            "tf",
            ["optimizer=muon", "optimizer.semantics=native", "train.precision=float64"],
            "train.precision=float64: Keras's own Muon fails with it; set it to float32, or optimizer.semantics to "
            "keras",
        ),
        (
            "tf",
            ["strategy=parameter_server", *CYCLE],
            "schedule.cycle_momentum=true: the operations of TensorFlow's asynchronous workers have a fixed momentum; "
            "set it to false, or strategy.max_staleness=0",
        ),
        (
            "tf",
            ["strategy=parameter_server", "optimizer=adafactor"],
            "optimizer.kind=adafactor: needs whole parameters, but TensorFlow's parameter servers hold parts; choose "
            "another optimizer or another strategy",
        ),
    ],
)
def test_strategies_that_a_framework_lacks_are_refused(
    error_line: ErrorLine, framework: str, overrides: list[str], expected: str
) -> None:
    assert error_line(*overrides, framework=framework) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["optimizer.semantics=torch"], "optimizer.semantics=torch: no such choice; there are aligned, keras, native"),
        (["train.precision=float16"], "train.precision=float16: no such choice; there are float32, bfloat16, float64"),
        (
            ["model.dropout_semantics=keras"],
            "model.dropout_semantics=keras: no such choice; there are aligned, native",
        ),
        (["train.matmul_precision=tf32"], "train.matmul_precision=tf32: no such choice; there are bfloat16"),
        (
            ["train.matmul_precision=bfloat16", "train.precision=float64"],
            "train.matmul_precision=bfloat16: only works with train.precision=float32; remove one of the two",
        ),
        (
            ["train.matmul_precision=bfloat16", "model=convnet", "data=digits"],
            "train.matmul_precision=bfloat16: not supported by model=convnet; remove it",
        ),
        (["train.steps=0"], "train.steps=0: must be at least 1"),
        (["train.epochs=0"], "train.epochs=0: must be at least 1"),
        (["train.global_batch_size=0"], "train.global_batch_size=0: must be at least 1"),
        (["train.seed=-1"], "train.seed=-1: must be at least 0"),
        (["train.log_every=0"], "train.log_every=0: must be at least 1"),
        (["train.eval_every=0"], "train.eval_every=0: must be at least 1"),
        (["train.max_length=2"], "train.max_length=2: must be at least 3"),
        (["schedule.warmup_steps=-1"], "schedule.warmup_steps=-1: must be at least 0"),
        (["schedule.total_steps=0"], "schedule.total_steps=0: must be at least 1"),
        (
            ["optimizer=adagrad", *CYCLE],
            "schedule.cycle_momentum=true: the momentum of optimizer.kind=adagrad cannot be cycled; set it to false",
        ),
        (
            ["optimizer=sgd", "optimizer.momentum=0", *CYCLE],
            "schedule.cycle_momentum=true: optimizer.momentum has no value or is 0",
        ),
        (
            ["optimizer=adafactor", *CYCLE],
            "schedule.cycle_momentum=true: the momentum of optimizer.kind=adafactor cannot be cycled",
        ),
        (["optimizer.semantics=native", *CYCLE], "schedule.cycle_momentum=true: Keras's optimizers have a fixed"),
        (["optimizer.learning_rate=-1"], "optimizer.learning_rate=-1.0: must be at least 0"),
        (["optimizer.learning_rate=nan"], "optimizer.learning_rate=nan: must be at least 0"),
        (["optimizer.weight_decay=-1"], "optimizer.weight_decay=-1.0: must be at least 0"),
        (["optimizer.beta1=1"], "optimizer.beta1=1.0: must be at least 0 and less than 1"),
        (["optimizer.max_grad_norm=0"], "optimizer.max_grad_norm=0.0: must be above 0, or null for no clipping"),
        # data that the model cannot read
        (
            ["data=digits"],
            "data.kind=digits: images, but model=bert_tiny reads text; choose a model of the kind convnet, or data of "
            "the kind builtin_nli or files or hub",
        ),
        (
            ["model=convnet", "data=builtin_nli"],
            "data.kind=builtin_nli: text, but model=convnet reads images; choose a model of the kind bert or "
            "pretrained, or data of the kind digits or idx or hub_images",
        ),
        (
            [*CUSTOM, "train.padding=micro_batches"],
            "train.padding=micro_batches: BatchNorm would have the statistics of micro-batches; choose global",
        ),
        (
            [*CUSTOM, "strategy=ddp", "strategy.accumulate=2"],
            "train.micro_batches=2: BatchNorm would have the statistics of micro-batches; set it to 1",
        ),
        (
            ["ema.decay=0.9", "swa.start_step=3"],
            "ema.decay=0.9 and swa.start_step=3: a run keeps one average; remove one",
        ),
        (
            ["swa.start_step=30", "train.steps=20"],
            "swa.start_step=30: the run has 20 steps, so the average would never start",
        ),
        (["ema.decay=1"], "ema.decay=1.0: must be above 0 and less than 1, or null for no average"),
        (
            ["train.evaluate_average=true"],
            "train.evaluate_average=true: the run keeps no average; give ema.decay=... or swa.start_step=...",
        ),
        (
            ["train.evaluate_both=true"],
            "train.evaluate_both=true: the run keeps no average; give ema.decay=... or swa.start_step=...",
        ),
        (
            ["ema.decay=0.9", "strategy=parameter_server"],
            "ema.decay: asynchronous updates have no order to average in; set strategy.max_staleness=0",
        ),
        (
            ["strategy=ddp", "strategy.accumulate=2", "train.micro_batches=3"],
            "strategy.accumulate=2 and train.micro_batches=3 disagree; give one of them",
        ),
        (
            ["strategy=ddp", "strategy.static_graph=true", "strategy.accumulate=2"],
            "strategy.static_graph=true: PyTorch's DDP cannot accumulate with it; set train.micro_batches=1",
        ),
        # runs
        (
            ["run_name=a/b"],
            "run_name=a/b: must be a name without path separators; set run_dir=PATH for a directory",
        ),
        (["run_name='a\\b'"], "run_name=a\\b: must be a name without path separators"),
        (["run_name=' '"], "run_name= : must be a name without path separators"),
        (["resume=auto"], "resume=auto: resumes the run in run_dir; give run_dir=..."),
    ],
)
def test_wrong_values_are_refused(error_line: ErrorLine, overrides: list[str], expected: str) -> None:
    assert error_line(*overrides).startswith(expected)


def test_compiling_needs_a_compiler(
    error_line: ErrorLine, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    expected = "train.compile=true: PyTorch needs a C++ compiler for it; install g++, or name one by CXX=..."
    assert error_line("train.compile=true") == expected
    check_config(make_config("train.compile=true"), "tf")  # XLA has its own


def test_a_config_can_be_checked_without_a_framework(make_config: MakeConfig) -> None:
    config = make_config("strategy=mirrored", "train.global_batch_size=1")
    check_config(config)
    assert config.strategy.replicas is None


def test_configs_that_are_built_in_python_are_checked(make_config: MakeConfig) -> None:
    config = make_config("train.eval_every=1")
    train = replace(config.train, early_stopping=replace(config.train.early_stopping, min_delta=-1.0))
    with pytest.raises(UserError, match=r"^train.early_stopping.min_delta=-1.0: must be at least 0"):
        check_config(replace(config, train=train))


def test_aligned_dropout_of_a_model_that_does_not_support_it(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("model.dropout=0.1")
    check_config(config)
    monkeypatch.setattr(type(config.model), "supports_aligned_dropout", False)
    with pytest.raises(UserError, match=r"^model.dropout_semantics=aligned: model=bert_tiny has native dropout only"):
        check_config(config)
    check_config(make_config("model.dropout=0.1", "model.dropout_semantics=native"))
    check_config(make_config())
