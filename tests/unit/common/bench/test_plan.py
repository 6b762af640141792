"""Plans: definitions become commands, and mistakes are errors before a contestant starts."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from common.bench.options import load_options
from common.bench.plan import ENDLESS, PlannedContestant, plan_contestants
from common.cluster.discovery import compose_config
from common.config.command_line import explain_error
from common.config.overrides import normalize_arguments
from common.errors import UserError
from examples.tabular import data as tabular

pytestmark = pytest.mark.slow

Plan = Callable[..., list[PlannedContestant]]
SMALL = ["data.train_examples=60", "data.validation_examples=12", "model.layers=1", "model.max_vocabulary=200"]
NAMES = "torch_ddp,torch_ddp_x1,torch_ddp_bfloat16,hf_trainer,keras_fit"

DEFINITIONS = load_options([])[0].definitions


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of data and weights that all plans of this file share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def plan(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Plan contestants of few steps, because the preparation checks the rate of each step: a million otherwise."""
    assert ENDLESS[0] == "train.steps=1000000"
    monkeypatch.setattr("common.bench.plan.ENDLESS", ["train.steps=1000", *ENDLESS[1:]])

    def plan_with(contestants: str, *overrides: str) -> list[PlannedContestant]:
        reference = f"bench.reference={contestants.partition(',')[0]}"
        options, training_overrides = load_options([f"bench.contestants=[{contestants}]", reference, *overrides])
        return plan_contestants(options, [f"cache_dir={cache_dir}", *training_overrides], tmp_path)

    return plan_with


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_definition_is_valid(name: str) -> None:
    """The overrides of a definition take precedence over the overrides for all contestants."""
    definition = DEFINITIONS[name]
    config = compose_config(
        definition.framework, normalize_arguments([*ENDLESS, "train.global_batch_size=64", *definition.overrides]), {}
    )
    replicas = re.search(r"_x(\d)$", name)
    has_one_replica = "single" in name or "core" in name
    assert config.strategy.world_size == (int(replicas[1]) if replicas else 1 if has_one_replica else 2)
    assert config.train.checkpoint_every == (20 if "saving" in name else None)
    assert config.train.global_batch_size == (int(name.rpartition("_")[2]) if "core" in name else 64)
    assert config.train.precision == ("bfloat16" if "bfloat16" in name else "float32")


def test_contestants_and_the_matrix_products_of_every_precision(plan: Plan, tmp_path: Path) -> None:
    planned = {contestant.command.name: contestant for contestant in plan(NAMES, *SMALL, "strategy.replicas=2")}
    assert list(planned) == [*NAMES.split(","), "matrix_rate_float32", "matrix_rate_bfloat16"]
    assert [contestant.is_training for contestant in planned.values()] == [True] * 5 + [False] * 2
    assert all(contestant.command.directory == tmp_path / name for name, contestant in planned.items())
    (flops,) = {contestant.useful_flops for contestant in planned.values() if contestant.is_training}
    assert flops is not None and flops > 1e6
    command = planned["torch_ddp"].command.command
    assert command[2] == "torch_impl.train"
    assert {"strategy=ddp", "train.checkpoint_every=null", f"run_dir={tmp_path / 'torch_ddp'}"} <= set(command)
    assert {"model.layers=1", "cluster.timeout=3600"} <= set(command)
    assert planned["torch_ddp_x1"].config.strategy.world_size == 1


def test_scripts_receive_the_config(plan: Plan, tmp_path: Path) -> None:
    trainer, keras, matrices = plan("hf_trainer,keras_fit", *SMALL, "train.global_batch_size=30")
    command = trainer.command.command
    assert command[2:4] == ["torch.distributed.run", "--nproc-per-node=2"]
    assert keras.command.command[2] == "tf_impl.contestants.keras_fit"
    for script_command in (command, keras.command.command):
        values = dict(text.removeprefix("--").split("=", 1) for text in script_command if text.startswith("--"))
        assert (values["global-batch-size"], values["precision"], values["replicas"]) == ("30", "float32", "2")
        examples = [json.loads(line) for line in Path(values["data"]).read_text().splitlines()]
        assert len(examples) == 60 and set(examples[0]) == {"premise", "hypothesis", "label"}
        assert (Path(values["weights"]) / "model.safetensors").exists()
    assert trainer.tokens is not None
    assert f"--tokens={round(trainer.tokens * 15)}" in matrices.command.command


def test_a_script_receives_a_users_model(plan: Plan, tmp_path: Path) -> None:
    tabular.write(tmp_path / "data")
    files = [f"data.{split}={tmp_path / 'data'}/{split}.npz" for split in ("train", "validation")]
    factory = "examples.tabular.model_torch:build"
    model = ["model=custom", f"model.torch={factory}", "++model.arguments={width: 8}", "data=arrays", *files]
    (contestant,) = plan("custom_ddp", *model, "task=regression")
    command = contestant.command.command
    values = dict(text.removeprefix("--").split("=", 1) for text in command if text.startswith("--"))
    assert (values["model"], values["arguments"], values["channels"]) == (factory, '{"width": 8}', "[]")
    assert values["ragged"] == "[]"
    with np.load(values["data"]) as arrays, np.load(tmp_path / "data" / "train.npz") as written:
        assert set(arrays) == set(written)
        np.testing.assert_array_equal(arrays["labels"], written["labels"])


def test_a_script_receives_the_inputs_of_different_lengths(plan: Plan, tmp_path: Path) -> None:
    lengths = [2, 3]
    offsets = np.cumsum([0, *lengths])
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "validation"):
        arrays: dict[str, Any] = {"tokens": np.arange(1, 6, dtype=np.int32), "labels": np.array([0, 1])}
        np.savez(data / f"{split}.npz", **arrays | {"tokens.offsets": offsets})
    files = [f"data.{split}={data}/{split}.npz" for split in ("train", "validation")]
    model = ["model=custom", "model.torch=examples.lstm.model_torch:build", "data=arrays", *files]
    (contestant,) = plan("custom_ddp", *model, "train.global_batch_size=2")
    values = dict(text.removeprefix("--").split("=", 1) for text in contestant.command.command if "--" in text[:2])
    assert values["ragged"] == '["tokens"]'
    with np.load(values["data"]) as written:
        assert written["tokens"][:, :3].tolist() == [[1, 2, 0], [3, 4, 5]] and not written["tokens"][:, 3:].any()
        assert written["tokens_mask"].sum(1).tolist() == lengths


def test_a_script_refuses_labels_without_a_loss(plan: Plan, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "validation"):
        np.savez(data / f"{split}.npz", input_ids=np.ones((4, 2), np.int32), labels=np.array([[0, -100]] * 4))
    files = [f"data.{split}={data}/{split}.npz" for split in ("train", "validation")]
    model = ["model=custom", "model.torch=examples.gpt.model_torch:build", "data=arrays", *files]
    with pytest.raises(UserError, match=r"^custom_ddp: cannot leave out the labels task.ignore_label=-100; remove it"):
        plan("custom_ddp", *model, "train.global_batch_size=2")


def test_matrix_products_have_the_shapes_of_the_reference(plan: Plan) -> None:
    *_, matrices = plan("torch_ddp,torch_core_8", *SMALL)
    reference, core = (plan(name, *SMALL)[-1] for name in ("torch_ddp", "torch_core_8"))
    assert "--nproc-per-node=2" in matrices.command.command
    shapes = [
        [text for text in contestant.command.command if "tokens=" in text] for contestant in (matrices, reference, core)
    ]
    assert shapes[0] == shapes[1] != shapes[2]


def test_a_model_without_a_count_of_flops_has_no_matrix_products(plan: Plan) -> None:
    (contestant,) = plan("torch_ddp", "model=convnet")
    assert contestant.useful_flops is None and contestant.is_training


@pytest.mark.parametrize(
    ("contestants", "override", "message"),
    [
        ("torch_ddp", "train.step=3", "train.step: no such key here; did you mean train.steps"),
        ("torch_ddp", "model=huge", "model=huge: no such choice"),
        ("torch_ddp", "train.global_batch_size=0", "train.global_batch_size=0: must be at least 1"),
        (
            "hf_trainer",
            "bench.definitions.hf_trainer.script=none",
            "bench.definitions.hf_trainer.script=none: no module",
        ),
        ("custom_ddp", "model=convnet", "custom_ddp: can only train model=custom model.torch=... with task=classif"),
        ("custom_fit", "model=convnet", "custom_fit: can only train model=custom model.tf=... with task=classif"),
        ("hf_trainer", "model=convnet", "hf_trainer: can only read data=builtin_nli or one .jsonl file"),
        ("keras_fit", "train.precision=float64", "keras_fit: does not support train.precision=float64; remove it"),
        (
            "keras_fit",
            "train.matmul_precision=bfloat16",
            "keras_fit: does not support train.matmul_precision; ",
        ),
    ],
)
def test_mistakes_are_errors(plan: Plan, contestants: str, override: str, message: str) -> None:
    with pytest.raises((UserError, HydraException, OmegaConfBaseException)) as raised:
        plan(contestants, override)
    assert explain_error(raised.value, ["ddp"]).startswith(message)
