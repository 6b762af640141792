import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from common.config.compose import CONF
from common.config.overrides import name_job, normalize_arguments
from common.errors import UserError


def read_value(override: str) -> object:
    """Return the value that Hydra reads from the normalized override."""
    (argument,) = normalize_arguments([override])
    return OverridesParser.create().parse_override(argument).value()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["strategy=ddp", "-m", "train.seed=1,2"], ["-m", "strategy=ddp", "train.seed=1,2"]),
        (["a=1", "--cfg", "job", "b=2"], ["--cfg", "job", "a=1", "b=2"]),
        (["a=1", "--config-dir", "x=y", "~b"], ["--config-dir", "x=y", "a=1", "~b"]),
        (["--config-dir=x=y", "a=1"], ["--config-dir=x=y", "a=1"]),
        (["--info", "a=1", "-h"], ["--info", "-h", "a=1"]),
        (["--info", "plugins", "a=1"], ["--info", "plugins", "a=1"]),
        (["nothing", "-m", "a=1"], ["-m", "nothing", "a=1"]),
        ([], []),
    ],
)
def test_flags_come_first(arguments: list[str], expected: list[str]) -> None:
    assert normalize_arguments(arguments) == expected


@pytest.mark.parametrize(
    "value",
    ["~/x", "a#b", "a(1).jsonl", "a,b", "a=b", "[a]", "{a}", "it's", 'a"b', "C:\\x\\", "übung", "1e3", "007", "no"],
)
def test_texts_need_no_quotes(value: str) -> None:
    assert read_value(f"run_dir={value}") == value


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="$'\"\\"), min_size=1))
def test_any_text_without_quotes_needs_none(value: str) -> None:
    if value.casefold() != "null":
        assert read_value(f"run_dir={value}") == value


@pytest.mark.parametrize(
    "override",
    [
        "run_dir=null",
        "run_dir='a b'",
        'run_dir="~/x"',
        "run_dir=a\\,b",
        "train.seed=1",
        "data=files",
        "~data",
        "run_dir",
        "~run_dir",
        "+x.y=~",
    ],
)
def test_overrides_that_hydra_reads_do_not_change(override: str) -> None:
    assert normalize_arguments([override]) == [override]


def test_sweeps_over_texts() -> None:
    assert normalize_arguments(["-m", "data.train=a,b"]) == ["-m", "data.train=a,b"]
    assert normalize_arguments(["-m", "data.train=~/a,b#"]) == ["-m", "data.train='~/a','b#'"]
    assert normalize_arguments(["-m", "data.train=choice(a,b)"]) == ["-m", "data.train=choice(a,b)"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resum"], "--resum: no such flag; --help lists"),
        (["-m", "run_dir=x", "train.seed=1,2"], "run_dir: every job of a sweep needs its own"),
        (["data=null"], "data=null: every run has one; choose one with data=..."),
    ],
)
def test_mistakes(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as raised:
        normalize_arguments(arguments)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("run_dir", ["run_dir=a,b", "run_dir=x/${train.seed}", "train.seed=3"])
def test_a_sweep_may_vary_the_run_directory(run_dir: str) -> None:
    normalize_arguments(["-m", run_dir, "train.seed=1,2"])


def test_the_name_of_a_job_has_the_swept_keys() -> None:
    arguments = [
        "-m",
        "strategy=ddp,allreduce",
        "strategy.replicas=1,2",
        "train.steps=3",
        "data.train='~/a x','b/c(1)'",
    ]
    task = ["strategy=ddp", "strategy.replicas=2", "train.steps=3", "data.train='b/c(1)'"]
    assert name_job(arguments, task) == "strategy=ddp,replicas=2,train=c-1-"
    assert name_job(["train.steps=3"], ["train.steps=3"]) == ""


def test_hydra_composes_normalized_overrides() -> None:
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("train", normalize_arguments(["data=files", "data.train=~/a#b (1).jsonl", "train.seed=7"]))
    assert (config.data.train, config.train.seed) == ("~/a#b (1).jsonl", 7)
