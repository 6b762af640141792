"""Operations of TensorFlow in a Chrome trace: the layers that their names contain, and their copies on GPUs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from common.profile.trace import TraceEvent, get_end

NameScope = tuple[str, ...]  # scopes of an operation's name, such as ("bert", "layer_0", "attention")


def get_scope(event: TraceEvent) -> NameScope:
    """Return the scopes in the name of TensorFlow's operation.

    A gradient has the scopes of its forward operation, and mostly the name of that operation as a further scope.
    """
    name = event["name"].partition(":")[0].removeprefix("gradient_tape/")
    return tuple(name.split("/")[:-1])


def find_layer(layers: Mapping[NameScope, str], scope: NameScope) -> str | None:
    """Return the name of the innermost layer around a scope; None outside of layers."""
    return next((layers[scope[:depth]] for depth in range(len(scope), 0, -1) if scope[:depth] in layers), None)


def name_layers(scopes: Sequence[NameScope]) -> dict[NameScope, str]:
    """Return the name of each layer, by the scope of the layer. `scopes` has one entry for each operation.

    At first the parts of the model are its layers. The largest layer is divided into its parts, again and again, until
    no layer has more than half of the operations.
    """
    model = Counter(scope[:1] for scope in scopes).most_common(1)[0][0] if scopes else ()
    model_scopes = [scope for scope in scopes if scope[:1] == model]
    layer_of = {scope: scope[:2] for scope in model_scopes}
    while model_scopes:
        largest, count = Counter(layer_of[scope] for scope in model_scopes).most_common(1)[0]
        divided = {scope: scope[: len(largest) + 1] for scope, layer in layer_of.items() if layer == largest}
        if 2 * count <= len(model_scopes) or len(set(divided.values())) == 1:
            break
        layer_of |= divided
    return {layer: layer[-1] for layer in layer_of.values() if layer != model}


def join_device_copies(events: Iterable[TraceEvent]) -> list[TraceEvent]:
    """Join the launch of an operation of TensorFlow on the host with its run on a GPU, which has the same name.

    Each is in the trace of a process of its own. An operation in a loop occurs several times in both.
    """
    by_name: dict[str, dict[int, list[TraceEvent]]] = {}
    for event in sorted(events, key=lambda event: float(event["ts"])):
        by_name.setdefault(event["name"], {}).setdefault(event.get("pid", 0), []).append(event)
    joined: list[TraceEvent] = []
    for by_process in by_name.values():
        for copies in zip_longest(*by_process.values()):
            present = [copy for copy in copies if copy is not None]
            start = min(copy["ts"] for copy in present)
            joined.append({**present[0], "ts": start, "dur": max(map(get_end, present)) - start})
    return joined
