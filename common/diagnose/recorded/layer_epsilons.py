"""Epsilons of layers that the scripts define themselves, such as a LayerNorm of their own."""

import re
from collections.abc import Sequence

from common.diagnose.findings import Stage
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide

EPSILON = re.compile(r"(^|_)eps(ilon)?$")


def compare_own_epsilons(stage: Stage, pair: RecordPair) -> None:
    """Compare the epsilons of layers of unknown kinds, which are counterparts if their variables are."""
    known_a = {layer.path_a for layer in pair.models.layers if layer.kind}
    known_b = {layer.path_b for layer in pair.models.layers if layer.kind}
    compared = set()
    for match in pair.models.variables:
        owners = _find_owner(pair.a, match.names_a), _find_owner(pair.b, match.names_b)
        if None in owners or owners in compared or owners[0] in known_a or owners[1] in known_b:
            continue
        compared.add(owners)
        a, b = (_read_epsilon(side, path) for side, path in zip(pair.sides, owners, strict=True))
        if a is not None and b is not None and a != b:
            title = " | ".join(dict.fromkeys(path for path in owners if path is not None))
            stage.add_mismatch(f"{title}: epsilon")
            sentence = f"{title}: epsilon is {a:g} in A and {b:g} in B"
            stage.add_cause("own_epsilon", "b", title, sentence, confirmed=False)


def _find_owner(side: RecordedSide, names: Sequence[str]) -> str | None:
    """Return the path of the layer that has a variable."""
    return next((layer["path"] for layer in side.layers if set(names) & set(layer["variables"].values())), None)


def _read_epsilon(side: RecordedSide, path: str | None) -> float | None:
    attributes = next(layer["attributes"] for layer in side.layers if layer["path"] == path)
    values = [value for name, value in attributes.items() if EPSILON.search(name) and isinstance(value, float)]
    return values[0] if len(values) == 1 else None
