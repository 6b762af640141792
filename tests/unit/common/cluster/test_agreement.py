import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.cluster.agreement import collect_shared_settings, decode_error, describe_disagreement, encode_error
from common.config.keys import CURVE, RUN
from common.config.schema import Config, collect_keys
from common.errors import PeerTimeout, UserError
from common.models.initial_weights import InitialCheckpoint
from common.run.context import RunContext
from common.run.inputs import PreparedInputs
from common.run.prepare import prepare_inputs
from tests.conftest import MakeConfig
from tests.unit.common.every_key import CACHE, PAIRS

SAME = PreparedInputs(CACHE, InitialCheckpoint(Path("initial"), "weights"), None)


def prepared(config: Config) -> RunContext:
    config, inputs = prepare_inputs(config, None)
    return RunContext(config, "torch", inputs)


@pytest.mark.slow
def test_only_what_decides_the_training_must_agree(small_config: MakeConfig) -> None:
    context = prepared(small_config("strategy=ddp"))
    mine = collect_shared_settings(context)
    other = small_config("strategy=ddp", "run_dir=elsewhere", "cluster.timeout=5", "train.log_every=1")
    assert describe_disagreement("rank 1", collect_shared_settings(prepared(other)), "rank 0", mine) is None
    other = small_config("strategy=ddp", "train.steps=7", "data.seed=5", "model.layers=2", "schedule.total_steps=300")
    assert describe_disagreement("rank 1", collect_shared_settings(prepared(other)), "rank 0", mine) == (
        f"rank 1 differs from rank 0 in model.layers (2, not 1), train.steps (7, not {context.config.train.steps}), "
        "data, initial weights; use the same on every host"
    )


@pytest.mark.parametrize("name", collect_keys())
def test_every_key_that_decides_the_run_must_agree(name: str) -> None:
    """The scope of a key decides, so a key that is added later is checked too."""
    config, other = (collect_shared_settings(RunContext(each, "torch", SAME)) for each in PAIRS[name])
    disagreement = describe_disagreement("rank 1", other, "rank 0", config)
    if collect_keys()[name].scope in (CURVE, RUN):
        assert disagreement == f"rank 1 differs from rank 0 in {name} (1, not 0); use the same on every host"
    else:
        assert disagreement is None and config == other


def test_what_was_prepared_must_agree() -> None:
    config, _ = PAIRS["train.seed"]
    context = RunContext(config, "torch", SAME)
    inputs = replace(SAME, initial=InitialCheckpoint(Path("elsewhere"), "other weights"))
    settings = collect_shared_settings(replace(context, inputs=inputs))
    assert describe_disagreement("rank 1", settings, "rank 0", collect_shared_settings(context)) == (
        "rank 1 differs from rank 0 in initial weights; use the same on every host"
    )


def test_what_only_one_has_need_not_agree() -> None:
    assert describe_disagreement("ps 0", {}, "chief 0", {"train.seed": 0}) is None


def test_a_problem_is_the_same_error_in_every_process() -> None:
    for problem in (UserError("another seed"), PeerTimeout("rank 1 did not arrive")):
        received = decode_error(json.loads(json.dumps(encode_error(problem))))
        assert (type(received), str(received)) == (type(problem), str(problem))
    assert decode_error(json.loads(json.dumps(encode_error(None)))) is None
