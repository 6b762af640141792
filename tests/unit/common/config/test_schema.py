from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from common.config import schema as configs
from common.config.schema import CONF, STRATEGIES, BuiltinNli, Digits, Files, Hub, HubImages, Idx, parse
from common.config.validate import CHOICES as CHECKED_CHOICES
from common.config.validate import validate
from common.errors import UserError
from tests.conftest import Compose, MakeConfig

GROUPS = ("data", "model", "optimizer", "schedule", "strategy", "cluster", "experiment")
CHOICES = [f"{path.parent.name}={path.stem}" for group in GROUPS for path in sorted(Path(CONF, group).glob("*.yaml"))]
MANDATORY = {
    "data=files": ["data.train=t.csv", "data.validation=v.csv"],
    "data=hub": ["data.path=owner/name", "data.revision=main"],
    "data=digits": ["model=convnet"],
    "data=mnist": ["model=convnet"],
    "data=idx": ["model=convnet", "data.directory=d"],
    "model=pretrained": ["model.checkpoint=owner/name"],
    "cluster=hosts": ["cluster.hosts=[a,b]", "cluster.node=1", "strategy=parameter_server"],
}


def test_every_file_of_conf_is_a_choice() -> None:
    roots = {Path(CONF) / "train.yaml", Path(CONF) / "compare.yaml"}
    choices = {Path(CONF, *choice.split("=")).with_suffix(".yaml") for choice in CHOICES}
    assert set(Path(CONF).rglob("*.yaml")) == roots | choices
    assert len(CHOICES) >= 20


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes_for_both_sides(composed: Compose, choice: str) -> None:
    found = composed(choice, *MANDATORY.get(choice, []))
    group, _, name = choice.partition("=")
    for framework, strategies in STRATEGIES.items():
        config = parse(found)
        if group == "strategy" and name not in strategies:
            with pytest.raises(UserError, match=f"^{choice}: is (PyTorch|TensorFlow)'s; run python -m"):
                validate(config, framework)
            continue
        validate(config, framework)
        assert config.strategy.replicas == (1 if config.strategy.name == "single" else 4 if name == "hosts" else 2)
        if group not in ("data", "experiment"):  # data=mnli is a hub's
            assert getattr(config, group).name == name


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        ("builtin_nli", BuiltinNli),
        ("files", Files),
        ("hub", Hub),
        ("mnli", Hub),
        ("digits", Digits),
        ("mnist", HubImages),
        ("idx", Idx),
    ],
)
def test_kinds_of_data(make_config: MakeConfig, choice: str, kind: type) -> None:
    assert type(make_config(f"data={choice}", *MANDATORY.get(f"data={choice}", [])).data) is kind


def test_compare_composes() -> None:
    with initialize_config_dir(CONF, version_base="1.3"):
        tolerances = compose("compare").tolerances
    assert set(tolerances) == set(CHECKED_CHOICES["train.precision"])


@pytest.mark.parametrize(
    ("overrides", "learning_rate"),
    [
        (["optimizer.learning_rate=0.5"], 0.5),
        (["model=minilm"], 3e-5),
        (["model=bert_base", "optimizer=adam"], 3e-5),
        (["model=minilm", "optimizer.learning_rate=1e-4"], 1e-4),
        (["experiment=minilm_finetune"], 3e-5),
        (["optimizer=sgd"], 1e-2),
        (["experiment=classic"], 3e-5),
        (["experiment=classic_laptop"], 3e-5),
        (["model=convnet", "optimizer=adam"], 1e-2),
    ],
)
def test_learning_rates(make_config: MakeConfig, overrides: list[str], learning_rate: float) -> None:
    assert make_config(*overrides).optimizer.learning_rate == learning_rate


def test_an_experiment_overrides_groups(make_config: MakeConfig) -> None:
    config = make_config("experiment=minilm_finetune", "train.steps=5")
    assert (config.model.name, config.optimizer.name, config.schedule.name) == ("minilm", "adam", "linear")
    assert (config.schedule.warmup_steps, config.train.steps) == (30, 5)
    assert Path(config.model.checkpoint, "config.json").exists()


@pytest.mark.parametrize(
    ("experiment", "model", "data"),
    [("classic", "bert_base", "hub"), ("classic_laptop", "bert_tiny", "builtin_nli"), ("mnist", "convnet", "mnist")],
)
def test_what_experiments_train(make_config: MakeConfig, experiment: str, model: str, data: str) -> None:
    config = make_config(f"experiment={experiment}")
    assert (config.model.name, config.data.name, config.schedule.name) == (model, data, "constant")
    assert config.optimizer.max_grad_norm is None


def test_the_convolutional_network_brings_its_data_and_optimizer(make_config: MakeConfig) -> None:
    config = make_config("model=convnet")
    assert (config.data.name, config.optimizer.name, config.schedule.name) == ("digits", "sgd", "constant")
    assert (config.optimizer.learning_rate, config.optimizer.momentum) == (0.01, 0.5)
    for other in (
        make_config("model=convnet", "data=idx", "data.directory=d"),
        make_config("experiment=mnist", "data=idx", "data.directory=d"),
    ):
        assert other.data == Idx("idx", False, "d")


@pytest.mark.parametrize("choice", ["data=builtin_nli", "data=files", "data=mnli", "model=bert_mini", "model=minilm"])
def test_a_saved_config_loads_as_it_was(make_config: MakeConfig, tmp_path: Path, choice: str) -> None:
    config = make_config(choice, *MANDATORY.get(choice, []), "strategy=ddp", "optimizer.learning_rate=0.1")
    validate(config, "torch")
    configs.save(config, tmp_path / "config.yaml")
    assert configs.load(tmp_path / "config.yaml") == config
    assert "${" not in (tmp_path / "config.yaml").read_text()


# Replicas


def test_a_package_that_is_not_installed() -> None:
    with pytest.raises(UserError, match="^model.checkpoint: the package no-such-thing is not installed; pip"):
        configs._package_directory("no_such_thing", "model")
