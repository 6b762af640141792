"""What a user reads of a config that cannot be run."""

from collections.abc import Callable

import pytest

from common.config.command_line import explain_error
from common.config.compose import parse_config
from common.config.resolve import resolve_config
from common.config.strategies import list_strategies
from common.config.validate import check_config
from tests.conftest import Compose

Said = Callable[..., str]


@pytest.fixture
def said(composed: Compose) -> Said:
    """The one line that these overrides print."""

    def say(*overrides: str, framework: str = "torch", hosts: int = 1) -> str:
        with pytest.raises(Exception) as raised:
            config = parse_config(composed(*overrides))
            check_config(config, framework)
            resolve_config(config, hosts)
        text = explain_error(raised.value, list_strategies(framework))
        assert "\n" not in text
        return text

    return say
