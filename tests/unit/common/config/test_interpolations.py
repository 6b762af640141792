from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from common.config.compose import CONF, load_config, parse_config, read_values, save_config
from common.config.interpolations import (
    escape_interpolations,
    escape_unknown_references,
    unescape_interpolations,
)
from common.config.overrides import normalize_arguments
from common.errors import UserError

TEXTS = ["a${b}", "${", "${a", "${oc.env:HOME}", "${${a}}", "$${a}", "C:\\x\\${a}\\", "\\\\${a}", "$a{b}", "\\a", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_stays_as_it_is(text: str) -> None:
    assert unescape_interpolations(escape_interpolations({"a": [text, 1, None]})) == {"a": [text, 1, None]}


@pytest.mark.parametrize("text", ["${a}", "a${oc.env:HOME}", "\\\\${a}", "${"])
def test_an_interpolation_that_is_not_escaped(text: str) -> None:
    with pytest.raises(ValueError, match="has an interpolation"):
        unescape_interpolations({"a": [text]})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x-${train.seed}-${now:%Y}", "x-${train.seed}-${now:%Y}"),
        ("a${b}", "a\\${b}"),
        ("a\\${b}", "a\\${b}"),
        ("a\\\\${b}", "a\\\\\\${b}"),
        ("a${", "a\\${"),
        ("${train.seed}${b}", "\\${train.seed}\\${b}"),
    ],
)
def test_only_names_of_keys_and_resolvers_are_interpolated(text: str, expected: str) -> None:
    assert escape_unknown_references(text, ["train.seed"]) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a${b}", "a${b}"),
        ("runs/$x ${y}, (1)", "runs/$x ${y}, (1)"),
        ("s${train.seed}", "s7"),
        ("r\\\\${b}", "r\\${b}"),
    ],
)
def test_a_path_is_taken_as_it_stands(value: str, expected: str, tmp_path: Path) -> None:
    """From the command to the file that the processes of the run and later commands read."""
    with initialize_config_dir(CONF, version_base="1.3"):
        config = parse_config(compose("train", normalize_arguments([f"run_dir={value}", "train.seed=7"])))
    assert config.run_dir == expected
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml").run_dir == expected


def test_a_disguised_interpolation_is_refused(tmp_path: Path) -> None:
    """YAML can write the dollar sign in another way."""
    (tmp_path / "config.yaml").write_text('run_dir: "\\x24{oc.env:HOME}"\n')
    with pytest.raises(UserError, match="has an interpolation"):
        read_values(tmp_path / "config.yaml")
