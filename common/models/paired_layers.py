"""Layers of both models of a user whose outputs can be compared, as the initial checkpoint lists them."""

from collections.abc import Mapping
from typing import TypedDict

from common.map.comparable_layers import list_comparable_layers
from common.map.pair_models import PairedModels


class PairedLayer(TypedDict):
    """A layer that both models have, as config.json lists it for common.diagnose."""

    kind: str  # such as "linear", under a name that both frameworks share
    paths: dict[str, list[str]]  # the layers whose first input and last output are compared, by framework; usually one
    settings: dict[str, dict[str, object]]  # settings of the layer that decide its output, by framework


def list_paired_layers(models: PairedModels | None) -> list[PairedLayer]:
    """Return the pairs of layers whose outputs can be compared, in the order of execution."""
    return [
        {
            "kind": layers.kind,
            "paths": {"torch": layers.torch, "tf": layers.keras},
            "settings": {"torch": _to_plain(layers.torch_settings), "tf": _to_plain(layers.keras_settings)},
        }
        for layers in list_comparable_layers(models.parameter_map.layer_pairs if models else [])
    ]


def _to_plain(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that JSON can hold."""
    return {
        name: value for name, value in settings.items() if isinstance(value, bool | int | float | str | list | tuple)
    }
