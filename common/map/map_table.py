"""The parameter map, which pairs the variables of a PyTorch and a Keras model, as a table for the terminal."""

from common.map.description import ModelDescription
from common.map.pair_variables import ParameterMap

COLUMNS = ("PyTorch", "shape", "Keras", "shape", "transformation")


def format_map_table(
    parameter_map: ParameterMap, torch_description: ModelDescription, keras_description: ModelDescription
) -> str:
    """Return a table with a row for every paired Keras variable, in the order of execution."""
    rows = [COLUMNS]
    for pair in parameter_map.variable_pairs:
        sources, joined = pair.transformation.sources, pair.transformation.joined
        separator = f"{joined} " if joined == "," else f" {joined} "
        torch_shape = torch_description.variables[sources[0].name].shape
        keras_shape = keras_description.variables[pair.keras].shape
        torch_names = separator.join(source.name for source in sources)
        steps = pair.transformation.describe_steps()
        rows.append((torch_names, _format_shape(torch_shape), pair.keras, _format_shape(keras_shape), steps))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _format_shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "1"
