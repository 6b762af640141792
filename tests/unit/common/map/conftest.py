"""Pairs and descriptions of models, built in the processes that all tests of a worker share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from common.map.description import ModelDescription
from common.map.input_specs import InputSpec, parse_input_spec
from common.map.pair_models import PairedModels, PairingRequest, describe_models
from common.map.pair_models import pair_models as pair_on_sides
from tests.unit.common.conftest import Sides

HERE = "tests.unit.common.map"
PairModels = Callable[..., PairedModels]
DescribeModel = Callable[[str, str, dict[str, str]], ModelDescription]


@pytest.fixture(scope="session")
def pair_models(sides: Sides) -> PairModels:
    """Pair factories of torch_models and keras_models, or of another module, by name.

    Arguments go to both factories. Results without a map file are kept, because several tests look at the same models.
    """
    results: dict[str, PairedModels] = {}

    def pair(
        torch: str, keras: str, inputs: dict[str, str], map_path: Path | None = None, **arguments: object
    ) -> PairedModels:
        key = repr((torch, keras, inputs, arguments))
        if map_path is None and key in results:
            return results[key]
        request = build_request(torch, keras, inputs, map_path, **arguments)
        models = pair_on_sides(sides["torch"], sides["tf"], request)
        if map_path is None:
            results[key] = models
        return models

    return pair


def build_request(
    torch: str, keras: str, inputs: dict[str, str], map_path: Path | None = None, **arguments: object
) -> PairingRequest:
    """Return the request that pairs factories of torch_models and keras_models, or of another module, by name."""
    factories = _qualify("torch_models", torch), _qualify("keras_models", keras)
    return PairingRequest(*factories, _parse(inputs), arguments, map_path)


@pytest.fixture(scope="session")
def describe_model(sides: Sides) -> DescribeModel:
    """Describe the model of one side without a counterpart."""

    def describe(side: str, factory: str, inputs: dict[str, str]) -> ModelDescription:
        request = PairingRequest(f"{HERE}.{factory}", f"{HERE}.{factory}", _parse(inputs))
        return describe_models({side: sides[side]}, request)[side]

    return describe


def _parse(inputs: dict[str, str]) -> dict[str, InputSpec]:
    return {name: parse_input_spec(name, text) for name, text in inputs.items()}


def _qualify(module: str, name: str) -> str:
    """Return the full name of a factory: of an example, of a module of this directory, or of `module`."""
    if name.startswith("examples."):
        return name
    return f"{HERE}.{name}" if ":" in name else f"{HERE}.{module}:{name}"
