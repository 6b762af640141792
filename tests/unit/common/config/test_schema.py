from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from common.config.compose import CONF
from common.config.data import IdxSettings
from common.config.models import PretrainedBertSettings
from common.config.resolve import resolve_config
from common.config.schema import GROUPS as SCHEMA_GROUPS
from common.config.schema import collect_keys, list_code_keys
from common.config.strategies import STRATEGIES, list_strategies
from common.config.validate import check_config
from common.errors import UserError
from tests.conftest import ROOT, MakeConfig
from tests.unit.common.config.conftest import ErrorLine

GROUPS = ("data", "model", "task", "optimizer", "schedule", "strategy", "cluster", "experiment")
CHOICES = [f"{path.parent.name}={path.stem}" for group in GROUPS for path in sorted(Path(CONF, group).glob("*.yaml"))]
CUSTOM = ["data=arrays", "data.train=t.npz", "data.validation=v.npz", "model=custom", "model.torch=a:b", "model.tf=c:d"]
MANDATORY = {
    "data=files": ["data.train=t.csv", "data.validation=v.csv"],
    "data=hub": ["data.path=owner/name", "data.revision=main"],
    "data=digits": ["model=convnet"],
    "data=mnist": ["model=convnet"],
    "data=idx": ["model=convnet", "data.directory=d"],
    "data=arrays": CUSTOM[1:],
    "data=custom": ["data.read=a:b", *CUSTOM[3:]],
    "data=lines": CUSTOM[1:],
    **{f"task={kind}": CUSTOM for kind in ("binary", "regression", "language_model")},
    "task=contrastive": CUSTOM,
    "task=multi_output": [*CUSTOM, "task.outputs={a: {}}"],
    "schedule=cosine_restarts": ["schedule.first_cycle_steps=5"],
    "schedule=step": ["schedule.step_size=5"],
    "schedule=multi_step": ["schedule.milestones=[5]"],
    "schedule=exponential": ["schedule.gamma=0.9"],
    "schedule=piecewise": ["schedule.boundaries=[5]", "schedule.factors=[1,0.5]"],
    "schedule=plateau": ["train.eval_every=5"],
    "schedule=custom": ["schedule.function=a:b"],
    "task=custom": [*CUSTOM, "task.torch=a:b", "task.tf=c:d"],
    "model=custom": CUSTOM,
    "model=pretrained": ["model.checkpoint=owner/name"],
    "cluster=hosts": ["cluster.hosts=[a,b]", "cluster.node=1", "strategy=parameter_server"],
}


def test_every_file_of_conf_is_a_choice() -> None:
    roots = {Path(CONF) / f"{command}.yaml" for command in ("train", "compare", "bench", "map", "diagnose")}
    choices = {Path(CONF, *choice.split("=")).with_suffix(".yaml") for choice in CHOICES}
    shared = Path(CONF, "optimizer", "shared", "keys.yaml")  # no choice: the optimizers take their keys from it
    assert set(Path(CONF).rglob("*.yaml")) == roots | choices | {shared}
    assert len(CHOICES) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_composes_for_both_frameworks(make_config: MakeConfig, choice: str) -> None:
    config = make_config(choice, *MANDATORY.get(choice, []))
    group, _, name = choice.partition("=")
    for framework in ("torch", "tf"):
        if group == "strategy" and name not in list_strategies(framework):
            with pytest.raises(UserError, match=f"^{choice}: a (PyTorch|TensorFlow) strategy; run it with python -m"):
                check_config(config, framework)
            continue
        check_config(config, framework)
        resolved = resolve_config(config, 2 if name == "hosts" else 1)
        assert resolved.strategy.replicas == (1 if config.strategy.kind == "single" else 4 if name == "hosts" else 2)
        if group not in ("data", "experiment"):  # data=mnli has the kind hub
            assert getattr(getattr(config, group), "name" if group == "model" else "kind") == name


def test_compare_composes() -> None:
    with initialize_config_dir(CONF, version_base="1.3"):
        tolerances = compose("compare").tolerances
    assert set(tolerances) == set(collect_keys()["train.precision"].choices)


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
    assert (config.model.name, config.optimizer.kind, config.schedule.kind) == ("minilm", "adam", "linear")
    assert (config.schedule.warmup_steps, config.train.steps) == (30, 5)
    assert isinstance(config.model, PretrainedBertSettings)
    assert Path(config.model.checkpoint, "config.json").exists()


@pytest.mark.parametrize(
    ("experiment", "model", "data"),
    [("classic", "bert_base", "hub"), ("classic_laptop", "bert_tiny", "builtin_nli"), ("mnist", "convnet", "mnist")],
)
def test_experiments_choose_models_and_data(make_config: MakeConfig, experiment: str, model: str, data: str) -> None:
    config = make_config(f"experiment={experiment}")
    kind = "hub_images" if data == "mnist" else data
    assert (config.model.name, config.data.kind, config.schedule.kind) == (model, kind, "constant")
    assert config.optimizer.max_grad_norm is None


@pytest.mark.slow
def test_the_convnet_chooses_data_and_optimizer(make_config: MakeConfig) -> None:
    config = make_config("model=convnet")
    assert (config.data.kind, config.optimizer.kind, config.schedule.kind) == ("digits", "sgd", "constant")
    assert (config.optimizer.learning_rate, config.optimizer.momentum) == (0.01, 0.5)
    for other in (
        make_config("model=convnet", "data=idx", "data.directory=d"),
        make_config("experiment=mnist", "data=idx", "data.directory=d"),
    ):
        assert other.data == IdxSettings("idx", False, directory="d")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["optimizer.beta2=null"], "optimizer.beta2=null: adamw needs a value; give optimizer.beta2=..."),
        (
            ["optimizer=adam", "optimizer.epsilon=null"],
            "optimizer.epsilon=null: adam needs a value; give optimizer.epsilon=...",
        ),
        (
            ["optimizer=muon", "optimizer.semantics=keras", "optimizer.rate_adjustment=original"],
            "optimizer.rate_adjustment=original: not with optimizer.semantics=keras; choose match_rms_adamw or none",
        ),
        (
            ["train.early_stopping.patience=2"],
            "train.early_stopping.patience: counts evaluations; give train.eval_every=... too",
        ),
        (["schedule=plateau"], "schedule=plateau: follows evaluations; give train.eval_every=... too"),
        (
            ["schedule=custom"],
            "schedule.function: has no value; schedule=custom needs schedule.function=module:function",
        ),
        (
            ["schedule=multi_step", "schedule.milestones=[5,3]"],
            "schedule.milestones=[5, 3]: must be numbers of steps, at least 0 and increasing",
        ),
        (
            ["schedule=multi_step", "schedule.milestones=[-1,3]"],
            "schedule.milestones=[-1, 3]: must be numbers of steps, at least 0 and increasing",
        ),
        (
            ["schedule=piecewise", "schedule.boundaries=[5,9]", "schedule.factors=[1,0.5]"],
            "schedule.factors=[1.0, 0.5]: must have one factor more than the 2 boundaries",
        ),
        (
            ["schedule=one_cycle", "schedule.three_phase=true", "schedule.pct_start=0.6"],
            "schedule.pct_start=0.6: with three_phase it must be at most 0.5; lower it",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    error_line: ErrorLine, overrides: list[str], expected: str
) -> None:
    assert error_line(*overrides) == expected


@pytest.mark.parametrize(
    ("overrides", "slots"),
    [
        (["optimizer=adamw"], ("exp_avg", "exp_avg_sq")),
        (["optimizer=adam"], ("exp_avg", "exp_avg_sq")),
        (["optimizer=sgd"], ("momentum_buffer",)),
        (["optimizer=sgd", "optimizer.momentum=0"], ()),
        (["optimizer=sgd", "optimizer.momentum=null"], ()),
    ],
)
def test_slots_of_the_optimizers(make_config: MakeConfig, overrides: list[str], slots: tuple[str, ...]) -> None:
    assert make_config(*overrides).optimizer.slots == slots


def test_adafactor_has_slots_by_the_number_of_axes(make_config: MakeConfig) -> None:
    config = make_config("optimizer=adafactor", "ema.decay=0.9")
    assert config.list_slots("bias", (4,)) == {"variance": (4,), "average": (4,)}
    kernel = (5, 4, 3, 2)
    assert config.list_slots("weight", kernel) == {"row_var": (5, 4, 3, 1), "col_var": (5, 4, 1, 2), "average": kernel}


def test_slots_have_the_layout_of_keras(make_config: MakeConfig) -> None:
    layouts = {"kernel": "transpose 2 3 1 0", "query": "transpose 1 0 | reshape 3 2 2", "bias": "reshape 2 2"}
    adafactor, muon = (
        replace(make_config(f"optimizer={kind}", "optimizer.semantics=keras").optimizer, keras_layouts=layouts)  # type: ignore[call-arg]
        for kind in ("adafactor", "muon")
    )
    assert adafactor.list_slots("kernel", (5, 4, 3, 2)) == {"row_var": (3, 2, 4, 1), "col_var": (3, 2, 1, 5)}
    assert adafactor.list_slots("query", (4, 3)) == {"row_var": (3, 2, 1), "col_var": (3, 1, 2)}
    assert muon.list_slots("query", (4, 3)) == {"exp_avg": (3, 2, 2), "exp_avg_sq": (3, 2, 2)}
    assert muon.list_slots("bias", (4,)) == {"momentum_buffer": (2, 2)}


def test_muon_has_a_momentum_of_matrices_that_match_no_pattern(make_config: MakeConfig) -> None:
    settings = make_config("optimizer=muon").optimizer
    moments = {"exp_avg": (3, 2), "exp_avg_sq": (3, 2)}
    assert settings.list_slots("layer.weight", (3, 2)) == {"momentum_buffer": (3, 2)}
    assert settings.list_slots("word_embeddings.weight", (3, 2)) == moments
    assert settings.list_slots("layer.bias", (3,)) == dict.fromkeys(moments, (3,))


def test_every_module_that_a_schema_names_exists() -> None:
    attributes = ("source", "cache", "spec", "torch_module", "tf_module", "engine")
    schemas = [schema for kinds in SCHEMA_GROUPS.values() for schema in kinds.values()]
    names = {getattr(schema, name) for schema in schemas for name in attributes if hasattr(schema, name)}
    names |= {path.partition(":")[0] for schema in STRATEGIES.values() for path in schema.sides.values()}
    assert len(names) > 25
    # find_spec would import the packages of the modules, and so both frameworks.
    paths = {name: ROOT.joinpath(*name.split(".")) for name in names}
    assert not [name for name in names if not (paths[name].is_dir() or paths[name].with_suffix(".py").is_file())]


# Keys of texts that name no code. A key that is missing here and names code must say so.
PLAIN_TEXTS = {
    *("cache_dir", "python", "resume", "run_dir", "run_name", "cluster.address"),
    *("model.checkpoint", "model.map", "model.name", "model.revision"),
    *("optimizer.adamw_match", "schedule.metric", "strategy.layers", "train.early_stopping.metric"),
}


def test_every_key_that_names_code_says_so() -> None:
    texts = {
        name
        for name, key in collect_keys().items()
        if key.type in (str, str | None) and not key.choices and not name.startswith("data.") and name[-5:] != ".kind"
    }
    assert texts - PLAIN_TEXTS == {*list_code_keys()} - {"data.transforms", "data.read"}
    assert {
        *(
            "data.transforms",
            "data.read",
            "model.keras",
            "model.torch",
            "model.tf",
            "task.torch",
            "task.tf",
            "schedule.function",
        )
    } == set(list_code_keys())
