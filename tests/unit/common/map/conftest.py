"""One process of each framework for all tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.map.input_specs import parse_input_spec
from common.map.pair_models import PairedModels, PairingRequest
from common.map.pair_models import pair_models as pair_on_sides
from common.map.side import Side

HERE = "tests.unit.common.map"
PairModels = Callable[..., PairedModels]


@pytest.fixture(scope="session")
def pair_models() -> Iterator[PairModels]:
    """Pair factories of torch_models and keras_models, or of another module, by name; arguments go to both."""
    with Side("torch_impl") as torch, Side("tf_impl") as keras:

        def run(
            ours: str, theirs: str, inputs: dict[str, str], map: Path | None = None, **arguments: Any
        ) -> PairedModels:
            parsed = {name: parse_input_spec(name, text) for name, text in inputs.items()}
            return pair_on_sides(
                torch,
                keras,
                PairingRequest(_named("torch_models", ours), _named("keras_models", theirs), parsed, arguments, map),
            )

        yield run


def _named(module: str, name: str) -> str:
    return f"{HERE}.{name}" if ":" in name else f"{HERE}.{module}:{name}"
