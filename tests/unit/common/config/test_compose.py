from pathlib import Path

import pytest
from omegaconf import OmegaConf

from common.config import compose
from common.config.command_line import explain_error
from common.config.compose import collect_values, describe_keys, parse_config
from common.config.keys import CURVE, HOST, RUN, SOURCE
from common.config.resolve import resolve_config
from common.config.schema import GROUPS
from common.errors import UserError
from tests.conftest import Compose, MakeConfig
from tests.unit.common.config.conftest import ErrorLine
from tests.unit.common.config.test_schema import MANDATORY


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["data=builtin_nli", "data=files", "data=mnli", "model=bert_mini", "model=minilm"])
def test_a_saved_config_loads_unchanged(make_config: MakeConfig, tmp_path: Path, choice: str) -> None:
    config = make_config(choice, *MANDATORY.get(choice, []), "strategy=ddp", "optimizer.learning_rate=0.1")
    config = resolve_config(config)
    compose.save_config(config, tmp_path / "config.yaml")
    assert compose.load_config(tmp_path / "config.yaml") == config
    assert "${" not in (tmp_path / "config.yaml").read_text()


def test_a_config_of_an_earlier_version_trains_on_the_devices_of_the_host(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    compose.save_config(make_config("strategy=ddp"), file)
    file.write_text("".join(line for line in file.open() if "device:" not in line and "python:" not in line))
    config = compose.load_config(file)
    assert (config.train.device, config.python) == ("auto", None)


def test_a_config_of_an_earlier_version_has_the_loss_of_its_task(make_config: MakeConfig, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    config = make_config("strategy=ddp")
    compose.save_config(config, file)
    added = ("loss: cross", "ignore_label:", "gamma:", "dice_smooth:")
    file.write_text("".join(line for line in file.open() if not line.strip().startswith(added)))
    assert "dice" not in file.read_text()
    assert compose.load_config(file).task == config.task


def test_a_config_of_an_earlier_version_has_the_schedule_and_average_of_its_run(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    config = make_config("ema.decay=0.9", "schedule=cosine")
    compose.save_config(config, file)
    file.write_text("".join(line for line in file.open() if not line.strip().startswith(("every:", "warmup_start:"))))
    loaded = compose.load_config(file)
    assert (loaded.ema, loaded.swa, loaded.schedule) == (config.ema, config.swa, config.schedule)


def test_a_missing_package_is_refused() -> None:
    with pytest.raises(UserError, match=r"^model.checkpoint: the package no-such-thing is not installed; pip"):
        compose._find_package_directory("no_such_thing", "model")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # choices that do not exist
        (
            ["model=bert_huge"],
            "model=bert_huge: no such choice; there are bert_base, bert_mini, bert_small, ",
        ),
        (
            ["data=cifar"],
            "data=cifar: no such choice; there are arrays, builtin_nli, custom, digits, files, hub, idx, ",
        ),
        (["data=files", "data.validation=x", "data.train=null"], "data.train: must not be null; give data.train=..."),
        (["extensions=lab"], "extensions=lab: must be a list; give 'extensions=[lab]'"),
        (["data=files", "data.classes=yes"], "data.classes: must be a list; give 'data.classes=[...,...]'"),
        (["optimizer.kind=lion"], "optimizer.kind=lion: no such kind; there are adamw, adam, sgd"),
        (
            ["schedule.kind=sine"],
            "schedule.kind=sine: no such kind; there are constant, linear, cosine, cosine_restarts, polynomial, step, "
            "multi_step, exponential, piecewise, inverse_sqrt, one_cycle, plateau, custom",
        ),
        (["data.kind=cifar"], "data.kind=cifar: no such kind; there are builtin_nli, files, hub, digits, idx, hub_im"),
        (["strategy.kind=horovod"], "strategy.kind=horovod: no such kind; there are single, dp, ddp, allreduce, zero"),
        (["~data"], "data=null: must be one of the files in conf/data"),
        (["train=null"], "train=null: must be a section of keys"),
        (["train.early_stopping=3"], "train.early_stopping=3: must be a section of keys"),
        # keys and types
        (["train.stepz=3"], "train.stepz: no such key here; "),
        (["+train.stepz=3"], "train.stepz: no such key here; "),
        (["+train.early_stopping.x=3"], "train.early_stopping.x: no such key here; "),
        (["+stepz=3"], "stepz: no such key here; "),
        (["model.checkpoint=x"], "model.checkpoint: no such key here; "),
        (["+data.train=x"], "data.train: no such key here; "),
        (
            ["data.transforms=[]"],
            "data.transforms: no such key here; images, arrays, custom and lines have it. Sentence",
        ),
        (["train.steps=many"], "train.steps: Value 'many' of type 'str' could not be converted to Integer"),
        (["train.steps=1.5"], "train.steps: Value '1.5' of type 'float' could not be converted to Integer"),
        (["train.steps=null"], "train.steps: "),
        (["cache_dir=[a,b]"], "cache_dir: must be one value, not a list"),
        (["cache_dir=null"], "cache_dir: "),
        (["train.early_stopping.patience=x"], "train.early_stopping.patience: Value 'x' of type 'str' could not be"),
        (["optimizer.learning_rate=fast"], "optimizer.learning_rate: Value 'fast' of type 'str' could not"),
        (["data.seed=x"], "data.seed: Value 'x' of type 'str' could not be converted to Integer"),
        (["model.layers=two"], "model.layers: Value 'two' of type 'str' could not be converted to Integer"),
        (["train.steps"], "train.steps: "),
        (["data=files"], "data.train: has no value; give data.train=..."),
        (["data=files", "data.train=x"], "data.validation: has no value; give data.validation=..."),
        (["data=hub", "data.path=x"], "data.revision: has no value; give data.revision=..."),
        (["model=pretrained"], "model.checkpoint: has no value; give model.checkpoint=..."),
        (["model=convnet", "data=idx"], "data.directory: has no value; give data.directory=..."),
        (["cluster=hosts"], "cluster.hosts: has no value; give cluster.hosts=..."),
        (["cluster=hosts", "cluster.hosts=[a]"], "cluster.node: has no value; give cluster.node=..."),
        (["extensions=[no.such]"], "extensions: no module no.such; add its directory to PYTHONPATH"),
    ],
)
def test_wrong_keys_and_types_are_refused(error_line: ErrorLine, overrides: list[str], expected: str) -> None:
    assert error_line(*overrides).startswith(expected)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.stepz=3", "train.stepz: no such key here; "),
        ("+train.stepz=3", "train.stepz: no such key here; "),
        ("model.checkpoint=x", "model.checkpoint: no such key here; "),
        ("train.steps", "train.steps: "),
        ("train.steps=many", "train.steps: Value 'many' of type 'str' could not be converted to Integer"),
    ],
)
def test_hydra_refuses_wrong_overrides_with_the_same_error(composed: Compose, override: str, expected: str) -> None:
    """`make_config` sets values without Hydra, which composes the overrides of a command."""
    with pytest.raises(Exception) as raised:
        parse_config(composed(override))
    assert explain_error(raised.value, []).startswith(expected)


@pytest.mark.parametrize("group", [*GROUPS, "train"])
def test_a_group_that_is_null_is_refused(composed: Compose, group: str) -> None:
    """A file may set a group to null. On the command line Hydra refuses null first."""
    values = composed().copy()
    values[group] = None
    with pytest.raises(UserError, match=f"^{group}=null: must be "):
        parse_config(values)


@pytest.mark.parametrize("name", ["replicas", "workers"])
def test_auto_replicas_are_chosen_later(make_config: MakeConfig, name: str) -> None:
    assert make_config("strategy=multiworker", f"strategy.{name}=auto") == make_config("strategy=multiworker")


def test_workers_are_another_name_of_replicas(make_config: MakeConfig) -> None:
    assert make_config("strategy=ddp", "strategy.workers=3") == make_config("strategy=ddp", "strategy.replicas=3")
    assert make_config("strategy=ddp", "strategy.workers=3", "strategy.replicas=3").strategy.replicas == 3
    assert make_config("strategy=ddp", "strategy.workers=3", "strategy.replicas=auto").strategy.replicas == 3
    with pytest.raises(UserError) as raised:
        make_config("strategy=ddp", "strategy.workers=3", "strategy.replicas=2")
    assert str(raised.value) == "strategy.workers=3 and strategy.replicas=2 disagree; give one of them"


def test_a_failed_import_of_an_extension_is_not_a_user_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_extension.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        compose._import_extension("my_extension")


def test_values_by_scope(make_config: MakeConfig) -> None:
    config = make_config("strategy=ddp", "train.early_stopping.patience=3")
    assert collect_values(config, CURVE)["optimizer.beta1"] == 0.9
    assert collect_values(config, RUN)["train.early_stopping.patience"] == 3
    assert collect_values(config, SOURCE)["data.seed"] == 0
    assert collect_values(config, HOST)["cache_dir"] == config.cache_dir
    names = [set(collect_values(config, scope)) for scope in (CURVE, SOURCE, RUN, HOST)]
    assert sum(map(len, names)) == len(set.union(*names)) == len(collect_values(config))
    assert collect_values(config, CURVE, RUN).keys() == names[0] | names[2]


def test_the_help_names_limits_choices_and_units() -> None:
    lines = describe_keys().splitlines()
    assert "train.seed: at least 0 and less than 9.22337e+18" in lines
    assert "train.precision: float32, bfloat16, float64" in lines
    assert "cluster.timeout: at least 1 and finite; seconds" in lines
    assert "model.hidden_size: at least 1 and finite" in lines
    assert not any(line.startswith(("run_dir", "data.path", "model.name")) for line in lines)


def test_the_help_is_resolved_by_the_config() -> None:
    assert OmegaConf.create({"text": "${config_keys:}"}).text == describe_keys()


@pytest.mark.parametrize("group", GROUPS)
def test_extensions_are_named_only_if_they_can_add_the_kind(group: str) -> None:
    with pytest.raises(UserError, match=rf"^{group}.kind=lion: no such kind; there are ") as raised:
        compose._find_schema(group, {"kind": "lion"})
    assert ("extensions" in str(raised.value)) == (group in ("data", "model", "strategy", "cluster"))
