"""One process of each framework for all tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.map.inputs import parse_input
from common.map.match import Job, Match, match
from common.map.side import Side

HERE = "tests.unit.common.map"
Matching = Callable[..., Match]


@pytest.fixture(scope="session")
def matching() -> Iterator[Matching]:
    """Pair factories of torch_models and keras_models, or of another module, by name; arguments go to both."""
    with Side("torch_impl") as torch, Side("tf_impl") as keras:

        def run(ours: str, theirs: str, inputs: dict[str, str], map: Path | None = None, **arguments: Any) -> Match:
            parsed = {name: parse_input(name, text) for name, text in inputs.items()}
            return match(
                torch, keras, Job(_named("torch_models", ours), _named("keras_models", theirs), parsed, arguments, map)
            )

        yield run


def _named(module: str, name: str) -> str:
    return f"{HERE}.{name}" if ":" in name else f"{HERE}.{module}:{name}"
