"""Values as text that Hydra reads: every value stays as it is, and calls nothing."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from common.config.overrides import normalize_arguments
from common.diagnose.overrides import quote_value
from common.errors import UserError

TEXTS = [
    *("${train.seed}", "${oc.env:HOME}", "${config_keys:[evil]}", "a${b}", "${", "${${a}}", "$${a}"),
    *("\\${oc.env:HOME}", "C:\\x\\${a}\\", "\\\\${a}", "\\a", "a\\", "\\\\", "it's", "\\'", "${a}'", "\\'${a}\\'"),
    *('"', "", "[1]", "a,b", "1", "null", "a\nb", "é\t", "choice(1,2)", "a=b"),
]


def read_value(key: str, value: object) -> object:
    """Return a value as a command reads it that has it as an override."""
    (text,) = normalize_arguments([f"{key}={quote_value(value)}"])
    parsed = OverridesParser.create().parse_overrides([text])[0]
    config = OmegaConf.create({"train": {"seed": 1}})
    OmegaConf.update(config, key, parsed.value(), force_add=True)
    return OmegaConf.to_container(config, resolve=True)[key.partition(".")[0]][key.partition(".")[2]]  # type: ignore[call-overload,index]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_stays_as_it_is(text: str) -> None:
    assert read_value("model.name", text) == text  # a key of texts
    assert read_value("data.classes", [text, text]) == [text, text]
    assert read_value("model.arguments", {"a": text, "b": {"c": [text]}}) == {"a": text, "b": {"c": [text]}}


@pytest.mark.parametrize("name", ["a:${oc.env:HOME},b", "${train.seed}", "a b", "", "a'b", "x}"])
def test_names_that_hydra_would_read_otherwise(name: str) -> None:
    with pytest.raises(UserError, match="a name in model.arguments that a diagnosis cannot repeat"):
        quote_value({"a": {name: 1}})
