"""conf/bench.yaml and its overrides; mistakes are told in one line, before anything starts."""

import pytest

from common.bench.settings import load_settings
from common.errors import UserError


def test_the_defaults_are_settings() -> None:
    settings, others = load_settings([])
    assert others == []
    assert settings.reference in settings.contestants
    assert set(settings.contestants) <= set(settings.definitions)
    assert settings.rounds >= 8


def test_overrides_without_the_prefix_are_of_the_training_config() -> None:
    given = ["model=bert_mini", "bench.rounds=3", "+data.x=1", 'bench.definitions.torch_ddp.overrides=["strategy=dp"]']
    settings, others = load_settings(given)
    assert others == ["model=bert_mini", "+data.x=1"]
    assert settings.rounds == 3
    assert settings.definitions["torch_ddp"].overrides == ["strategy=dp"]


def test_a_contestant_can_be_added() -> None:
    settings, _ = load_settings(
        ["+bench.definitions.mine={framework: tf, script: mine}", "bench.contestants=[mine]", "bench.reference=mine"]
    )
    assert settings.definitions["mine"].script == "mine"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("bench.rounds=0", "bench.rounds=0: must be at least 1"),
        ("bench.block_seconds=nan", "bench.block_seconds=nan: must be at least 0.1"),
        ("bench.rounds=many", "bench.rounds: Value 'many'"),
        ("bench.round=3", "bench.round: no such key here; .*the keys are bench.contestants, bench.reference, "),
        ("bench.contestants=[nobody]", "bench.contestants: nobody has no definition; there are torch_single, "),
        ("bench.contestants=[]", "bench.contestants: must name one or more"),
        ("bench.contestants=[torch_ddp,torch_ddp]", "bench.contestants: must name one or more, each once"),
        ("bench.reference=tf_single", "bench.reference=tf_single: is not one of bench.contestants that trains"),
        ("bench.definitions.torch_ddp.framework=jax", "bench.definitions.torch_ddp.framework: must be torch or tf"),
    ],
)
def test_a_mistake_is_one_line(override: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}") as raised:
        load_settings([override])
    assert "\n" not in str(raised.value)
