"""The error line that a config which cannot run prints."""

from collections.abc import Callable

import pytest

from common.config.command_line import explain_error
from common.config.resolve import resolve_config
from common.config.strategies import list_strategies
from common.config.validate import check_config
from tests.conftest import MakeConfig

ErrorLine = Callable[..., str]


@pytest.fixture
def error_line(make_config: MakeConfig) -> ErrorLine:
    """Return the line that the command of a framework prints for these overrides."""

    def explain(*overrides: str, framework: str = "torch", hosts: int = 1) -> str:
        with pytest.raises(Exception) as raised:
            config = make_config(*overrides)
            check_config(config, framework)
            resolve_config(config, hosts)
        text = explain_error(raised.value, list_strategies(framework))
        assert "\n" not in text
        return text

    return explain
