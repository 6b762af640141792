"""Pairs of layers that hold the same parameters in the models of A and B.

A is the reference run of a diagnosis, and B the run that is compared with it; each may use either framework.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from common.config.models import CustomModelSettings
from common.diagnose.observation import CallNoise
from common.diagnose.side_run import SideRun
from common.map.description import RecordedCall
from common.models.paired_layers import PairedLayer

Call = TypeVar("Call", RecordedCall, CallNoise)  # the input and the output of a layer, or their noise
SEPARATORS = "./"  # one of them precedes the last part of a parameter's name: "/" if only a Keras model has it
LayerSettings = Mapping[str, object]  # such as {"epsilon": 1e-5}


@dataclass(frozen=True)
class LayerMatch:
    """A layer of A and its counterpart in B.

    Attributes:
        kind: Kind of the layer in a custom model, such as "linear"; empty in other models.
        name: Common beginning of the names of the layer's parameters: "encoder.0" for "encoder.0.weight".
        path_a: Path of the layer in A's model.
        path_b: Path of the layer in B's model.
        entries_a: Paths of the layers in A that receive the input, if the layer at `path_a` does not. An attention, for
            example, may be several layers in one of the models: some receive the input, and one returns the output.
        entries_b: The same for B.
        channels_first: Whether the channels of A's arrays, and those of B's, are in the second axis; None: not known.
        settings_a: Settings of A's layer that decide its output.
        settings_b: Settings of B's layer that decide its output.
    """

    kind: str
    name: str
    path_a: str
    path_b: str
    settings_a: LayerSettings = field(default_factory=dict)
    settings_b: LayerSettings = field(default_factory=dict)
    entries_a: tuple[str, ...] = ()
    entries_b: tuple[str, ...] = ()
    channels_first: tuple[bool, bool] | None = None

    @property
    def title(self) -> str:
        """Name of the pair in reports."""
        return self.path_a if self.path_a == self.path_b else f"{self.path_a} | {self.path_b}"

    @property
    def paths_a(self) -> list[str]:
        """Paths of the layers in A that receive the input or return the output."""
        return [*self.entries_a, self.path_a]

    @property
    def paths_b(self) -> list[str]:
        """Paths of the layers in B that receive the input or return the output."""
        return [*self.entries_b, self.path_b]

    def get_call_of_a(self, calls: Mapping[str, Call]) -> Call | None:
        """Return the call of A's layer, or the noise of its call; None if the layer was not called."""
        return _join_calls(calls, self.path_a, self.entries_a)

    def get_call_of_b(self, calls: Mapping[str, RecordedCall]) -> RecordedCall | None:
        """Return the call of B's layer; None if the layer was not called."""
        return _join_calls(calls, self.path_b, self.entries_b)


def _join_calls(calls: Mapping[str, Call], path: str, entries: tuple[str, ...]) -> Call | None:
    """Return one call with the input of the first entry and the output of the layer at a path."""
    call, entry = calls.get(path), calls.get(entries[0] if entries else path)
    return replace(call, received=entry.received) if call is not None and entry is not None else None


def match_layers(a: SideRun, b: SideRun, layers_a: Mapping[str, str], layers_b: Mapping[str, str]) -> list[LayerMatch]:
    """Return the pairs of layers that hold the same parameters.

    Args:
        a: Run of side A.
        b: Run of side B.
        layers_a: Path of the layer that holds each parameter of A, by the parameter's name.
        layers_b: Path of the layer that holds each parameter of B, by the parameter's name.
    """
    # The initial weights of a custom model come with the pairs of its PyTorch and Keras layers.
    if isinstance(a.config.model, CustomModelSettings) and (layers := a.prepared.initial.hf_config["layers"]):
        return [build_match(layer, a.arguments.framework, b.arguments.framework) for layer in layers]
    paths: dict[str, tuple[str, str]] = {}  # paths of the layers in A and in B, by the layer's name
    for parameter in layers_a:
        if parameter in layers_b:
            name = parameter[: max(map(parameter.rfind, SEPARATORS))]
            paths.setdefault(name, (layers_a[parameter], layers_b[parameter]))
    return [LayerMatch("", name, path_a, path_b) for name, (path_a, path_b) in paths.items()]


def build_match(layer: PairedLayer, framework_a: str, framework_b: str) -> LayerMatch:
    """Return the match of two runs' layers that config.json lists as a pair of PyTorch's and Keras's layers."""
    paths, settings = layer["paths"], layer["settings"]
    (*entries_a, path_a), (*entries_b, path_b) = paths[framework_a], paths[framework_b]
    return LayerMatch(
        layer["kind"],
        paths["torch"][0] if len(paths["torch"]) == 1 else "",  # several layers have no common name
        path_a,
        path_b,
        settings[framework_a],
        settings[framework_b],
        tuple(entries_a),
        tuple(entries_b),
    )
