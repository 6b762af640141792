"""A model as a recorder describes it."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.diagnose.recorded.layer_vocabulary import translate_attributes
from common.map.description import Connection, LayerDescription, ModelDescription, VariableDescription
from common.recording.record_format import LayerFacts, ModelFacts


@dataclass(frozen=True)
class RecordedModel:
    """A model as a recorder describes it, in a record or in the process of a script.

    Attributes:
        is_torch: Whether it is a model of PyTorch.
        facts: The description.
    """

    is_torch: bool
    facts: ModelFacts


def describe_recorded_model(model: RecordedModel) -> ModelDescription:
    """Return the description of a recorded model, as common.map uses it."""
    variables = {
        name: VariableDescription(name, tuple(facts["shape"]), facts["trainable"])
        for name, facts in model.facts["variables"].items()
        if "float" in facts["dtype"]
    }
    layers = [
        LayerDescription(
            layer["kind"],
            layer["path"],
            translate_attributes(layer, model.is_torch),
            {role: name for role, name in layer["variables"].items() if name in variables},
            tuple(layer["unflattened_shape"]) if layer["unflattened_shape"] else None,
            layer["composite"],
            Connection((), frozenset(_list_sources(layer))),
            attribute=layer.get("attribute", ""),
        )
        for layer in model.facts["layers"]
        if layer["variables"]
    ]
    owned = {name for layer in layers for name in layer.variables.values()}
    unowned = [name for name in variables if name not in owned]
    layers += _describe_uncalled(unowned, "." if model.is_torch else "/")
    return ModelDescription(layers, variables, unowned, has_channels=False)


def _list_sources(layer: LayerFacts) -> Sequence[str]:
    return layer.get("sources", [layer["source"]] if "source" in layer else [])


def _describe_uncalled(names: Sequence[str], separator: str) -> list[LayerDescription]:
    """Return layers that the script does not call: other code may use their variables, such as an embedding's weight.

    Args:
        names: The names of the variables.
        separator: The text between the path of a layer and the role of its variable.
    """
    roles: dict[str, dict[str, str]] = {}
    for name in names:
        path, _, role = name.rpartition(separator)
        roles.setdefault(path, {})[role] = name
    return [LayerDescription("", path, {}, variables) for path, variables in roles.items()]
