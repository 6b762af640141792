"""Parameter groups: parts of a model that the optimizer treats differently, chosen by PyTorch's parameter names.

`optimizer.groups` is a list. An element is `no_decay_on_bias_and_norm`, `{layerwise_decay: 0.9}`, or a mapping with
`match` and the values to set: `weight_decay`, `learning_rate_scale` or `frozen`. `match` holds shell patterns,
separated by "|". If several elements set the same value for a parameter, the last one wins.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from common.errors import UserError

NO_DECAY, LAYERWISE = "no_decay_on_bias_and_norm", "layerwise_decay"
GROUP_KEYS = ("weight_decay", "learning_rate_scale", "frozen")
FORMS = f"{NO_DECAY}, {{{LAYERWISE}: 0.9}}, or {{match: PATTERN, and one or more of {', '.join(GROUP_KEYS)}}}"

Shapes = Mapping[str, Sequence[int]]  # the shape of each trained parameter, by PyTorch's name


@dataclass(frozen=True)
class GroupSettings:
    """Settings with which the optimizer treats the parameters of one group.

    Attributes:
        weight_decay: Weight decay.
        learning_rate_scale: Factor of the learning rate.
        frozen: Whether the parameters are not trained.
    """

    weight_decay: float
    learning_rate_scale: float = 1.0
    frozen: bool = False


def check_groups(groups: Sequence[object]) -> None:
    """Raise UserError if an element of `optimizer.groups` has none of the known forms."""
    for group in groups:
        if group == NO_DECAY:
            continue
        if not isinstance(group, dict) or not all(isinstance(name, str) for name in group):
            raise UserError(f"optimizer.groups: {group} is not a group; use {FORMS}")
        if group.keys() == {LAYERWISE}:
            _check_number(LAYERWISE, group[LAYERWISE], "above 0, at most 1")
            continue
        if not isinstance(group.get("match"), str) or len(group) < 2 or group.keys() - {"match", *GROUP_KEYS}:
            raise UserError(f"optimizer.groups: {group} is not a group; use {FORMS}")
        for name in group.keys() & {"weight_decay", "learning_rate_scale"}:
            _check_number(name, group[name])
        if not isinstance(group.get("frozen", True), bool):
            raise UserError(f"optimizer.groups: frozen={group['frozen']}: must be true or false")


def _check_number(name: str, value: object, limits: str = "at least 0") -> None:
    """Raise UserError unless a value is a number within the limits: "at least 0" or "above 0, at most 1"."""
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else -1.0
    if not 0 <= number < float("inf") or (limits != "at least 0" and not 0 < number <= 1):
        raise UserError(f"optimizer.groups: {name}={value}: must be a number {limits}")


def expand_groups(groups: Sequence[Any], shapes: Shapes) -> list[object]:
    """Replace `layerwise_decay` by a group for each layer, and check that every pattern chooses some parameters.

    Raises:
        UserError: A pattern matches no parameter or all of them, or a model has no numbered layers.
    """
    expanded: list[object] = []
    for group in groups:
        is_layerwise = isinstance(group, dict) and LAYERWISE in group
        expanded += _list_layers(float(group[LAYERWISE]), shapes) if is_layerwise else [group]
    for group in expanded:
        chosen = _choose(group, shapes)
        if not chosen:
            names = ", ".join(list(shapes)[:3])
            raise UserError(f"optimizer.groups: {_name_group(group)} matches no parameter; the model has {names}, ...")
        if len(chosen) == len(shapes) and group != NO_DECAY:
            raise UserError(
                f"optimizer.groups: {_name_group(group)} matches every parameter; set the value for all of them, such "
                "as optimizer.weight_decay=..., or choose fewer"
            )
    if all(settings.frozen for settings in _assign(expanded, GroupSettings(0.0), shapes).values()):
        raise UserError("optimizer.groups: all parameters are frozen; leave some to train")
    return expanded


def _name_group(group: object) -> str:
    return f"match={group['match']}" if isinstance(group, dict) else str(group)


def _list_layers(decay: float, shapes: Shapes) -> Iterator[dict[str, object]]:
    """Yield a group for the embeddings and for each layer of the largest stack of numbered layers.

    Layer i of n, from 1, gets the factor decay^(n + 1 - i), and parameters with "embed" in their names decay^(n + 1).
    This is the rule of ELECTRA. All other parameters, such as those of a head, keep the factor 1.
    """
    stacks: Counter[str] = Counter()
    numbers: dict[str, set[int]] = {}
    for name in shapes:
        parts = name.split(".")
        position = next((index for index, part in enumerate(parts) if part.isdigit()), None)
        if position is not None:
            stack = "".join(f"{part}." for part in parts[:position])
            stacks[stack] += 1
            numbers.setdefault(stack, set()).add(int(parts[position]))
    if not stacks:
        raise UserError(f"optimizer.groups: {LAYERWISE}: no parameter has a number in its name, such as layer.0.weight")
    stack = max(stacks, key=lambda name: stacks[name])
    layers = sorted(numbers[stack])
    if any("embed" in name for name in shapes):
        yield {"match": "*embed*", "learning_rate_scale": decay ** (len(layers) + 1)}
    for position, number in enumerate(layers):
        yield {"match": f"{stack}{number}.*", "learning_rate_scale": decay ** (len(layers) - position)}


def _choose(group: object, shapes: Shapes) -> list[str]:
    """Return the names of the parameters that a group chooses."""
    if isinstance(group, dict):
        patterns = [pattern.strip() for pattern in str(group["match"]).split("|")]
        return [name for name in shapes if any(fnmatchcase(name, pattern) for pattern in patterns)]
    # NO_DECAY chooses biases and, because they have one axis, the parameters of norms.
    return [name for name, shape in shapes.items() if len(shape) < 2 or name.endswith("bias")]


def find_overlaps(groups: Sequence[object], shapes: Shapes) -> list[str]:
    """Return a sentence for each pair of groups that set a value of the same parameters, but not to the same.

    groups: `optimizer.groups`, after `expand_groups`.
    """
    overlaps = []
    chosen = [_choose(group, shapes) for group in groups]
    for index, later in enumerate(groups):
        values, later_names = _get_values(later), set(chosen[index])
        for earlier, earlier_names in zip(groups[:index], chosen, strict=False):
            others = _get_values(earlier)
            changed = [name for name in values if name in others and values[name] != others[name]]
            names = [name for name in earlier_names if name in later_names]
            if changed and names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                overlaps.append(
                    f"{_name_group(earlier)} and then {_name_group(later)} set {' and '.join(changed)} of {names[0]}"
                    f"{more}: the last one wins"
                )
    return overlaps


def _get_values(group: object) -> dict[str, Any]:
    """Return the values that a group sets, by their keys."""
    if isinstance(group, dict):
        return {name: group[name] for name in GROUP_KEYS if name in group}
    return {"weight_decay": 0.0}  # NO_DECAY


def assign_groups(groups: Sequence[object], weight_decay: float, shapes: Shapes) -> dict[str, GroupSettings]:
    """Return the settings of each parameter, by its name.

    Args:
        groups: `optimizer.groups`, after `expand_groups`.
        weight_decay: The weight decay of parameters for which no group sets another.
        shapes: The shapes of the parameters to assign, which may be some of the model's.
    """
    return _assign(groups, GroupSettings(weight_decay), shapes)


def _assign(groups: Sequence[object], default: GroupSettings, shapes: Shapes) -> dict[str, GroupSettings]:
    assigned = dict.fromkeys(shapes, default)
    for group in groups:
        values = _get_values(group)
        for name in _choose(group, shapes):
            assigned[name] = replace(assigned[name], **values)
    return assigned
