"""conf/bench.yaml and its overrides. A mistake is an error of one line, before a contestant starts."""

import pytest

from common.bench.options import load_options
from common.errors import UserError


def test_the_defaults_are_valid() -> None:
    options, training_overrides = load_options([])
    assert training_overrides == []
    assert options.reference in options.contestants
    assert set(options.contestants) <= set(options.definitions)
    assert options.rounds >= 8


def test_overrides_without_the_prefix_belong_to_the_training_config() -> None:
    arguments = [
        "model=bert_mini",
        "bench.rounds=3",
        "+data.x=1",
        'bench.definitions.torch_ddp.overrides=["strategy=dp"]',
    ]
    options, training_overrides = load_options(arguments)
    assert training_overrides == ["model=bert_mini", "+data.x=1"]
    assert options.rounds == 3
    assert options.definitions["torch_ddp"].overrides == ["strategy=dp"]


def test_a_contestant_can_be_added() -> None:
    options, _ = load_options(
        ["+bench.definitions.mine={framework: tf, script: mine}", "bench.contestants=[mine]", "bench.reference=mine"]
    )
    assert options.definitions["mine"].script == "mine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("bench.rounds=0", "bench.rounds=0: must be at least 1"),
        ("bench.block_seconds=nan", "bench.block_seconds=nan: must be at least 0.1"),
        ("bench.rounds=many", "bench.rounds: Value 'many'"),
        ("bench.round=3", "bench.round: no such key here; .*the keys are bench.contestants, bench.reference, "),
        ("bench.contestants=[nobody]", "bench.contestants: nobody has no definition; there are torch_single, "),
        ("bench.contestants=[]", "bench.contestants: must name at least one"),
        (
            "bench.contestants=[torch_ddp,torch_ddp]",
            "bench.contestants: must name at least one contestant, each of them once",
        ),
        ("bench.reference=tf_single", "bench.reference=tf_single: not one of bench.contestants that trains"),
        ("bench.definitions.torch_ddp.framework=jax", "bench.definitions.torch_ddp.framework: must be torch or tf"),
    ],
)
def test_mistakes_are_errors_of_one_line(override: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}") as raised:
        load_options([override])
    assert "\n" not in str(raised.value)
