"""What a user reads of a config that cannot be run."""

from collections.abc import Callable

import pytest

from common.config.command_line import explain
from common.config.compose import parse
from common.config.resolve import resolve
from common.config.strategies import strategies_of
from common.config.validate import check
from tests.conftest import Compose

Said = Callable[..., str]


@pytest.fixture
def said(composed: Compose) -> Said:
    """The one line that these overrides print."""

    def say(*overrides: str, framework: str = "torch", hosts: int = 1) -> str:
        with pytest.raises(Exception) as raised:
            config = parse(composed(*overrides))
            check(config, framework)
            resolve(config, hosts)
        text = explain(raised.value, strategies_of(framework))
        assert "\n" not in text
        return text

    return say
