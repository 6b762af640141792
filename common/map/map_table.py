"""The map as a table."""

from common.map.description import ModelDescription
from common.map.pair_variables import ParameterMap

COLUMNS = ("PyTorch", "shape", "Keras", "shape", "transformation")


def format_map_table(parameter_map: ParameterMap, torch: ModelDescription, keras: ModelDescription) -> str:
    """A line for each Keras variable, in the order of execution."""
    rows = [COLUMNS]
    for each in parameter_map.variable_pairs:
        sources, joined = each.transformation.sources, each.transformation.joined
        names = f"{joined} " if joined == "," else f" {joined} "
        shape, other = torch.variables[sources[0].name].shape, keras.variables[each.keras].shape
        ours = names.join(source.name for source in sources)
        rows.append((ours, _size(shape), each.keras, _size(other), each.transformation.words))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "1"
