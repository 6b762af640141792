"""The outputs of a user's model that the task uses, as the config.json of the initial checkpoint has them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from common.config.schema import Config
from common.config.task_kinds import ContrastiveSettings, MultiOutputSettings
from common.config.tasks import ClassificationSettings, TaskSettings
from common.data.cache import Cache
from common.data.splits.multi_output_split import MultiOutputSplit
from common.data.transforms.transformed_split import TransformedOutputsSplit
from common.errors import UserError
from common.models.model_outputs import (
    MOVES,
    Shape,
    TaskOutput,
    find_class_axis,
    find_output,
    format_shape,
    has_order,
)

Shapes = Mapping[str, Mapping[str, Shape]]  # the shapes of the outputs for some examples, by framework and name


@dataclass(frozen=True)
class OutputLayout:
    """The shapes of one output and its labels within flat vectors of several outputs and their labels.

    Attributes:
        output: The shape of the output of an example, in the order of the labels.
        labels: The shape of the labels of an example.
        is_integer: Whether the labels are integers.
    """

    output: list[int]
    labels: list[int]
    is_integer: bool


def describe_outputs(
    keys: Mapping[str, str], config: Config, cache: Cache, shapes: Shapes, labels: np.ndarray
) -> dict[str, Any]:
    """Return the names, the moved axes, the classes and the layouts of the outputs, for the config.json.

    Args:
        keys: The config key and the factory of each side, for errors.
        config: The config of the run.
        cache: The cache of the data.
        shapes: By side, the shape of each output for some examples.
        labels: The labels of these examples.

    Raises:
        UserError: The model lacks outputs that the task needs.
    """
    if isinstance(config.task, MultiOutputSettings):
        sides, layouts = _find_outputs(keys, config.task, cache, shapes)
        return {
            "outputs": {side: [output.name for output in outputs] for side, outputs in sides.items()},
            "moved_axes": {side: [output.move for output in outputs] for side, outputs in sides.items()},
            "output_classes": [output.classes for output in next(iter(sides.values()))],
            "output_layouts": [asdict(layout) for layout in layouts],
        }
    if isinstance(config.task, ContrastiveSettings):
        names, layout = _find_embeddings(keys, config.task, shapes)
        return {
            "outputs": names,
            "moved_axes": {side: [None] * len(outputs) for side, outputs in names.items()},
            "output_classes": None,
            "output_layouts": [asdict(layout)],
        }
    outputs = {side: find_output(keys[side], config, cache, shapes[side], labels) for side in shapes}
    return {
        "outputs": {side: output.name for side, output in outputs.items()},
        "moved_axes": {side: output.move for side, output in outputs.items()},
        "output_classes": next(output.classes for output in outputs.values()),
        "output_layouts": None,
    }


def _find_outputs(
    keys: Mapping[str, str], task: MultiOutputSettings, cache: Cache, shapes: Shapes
) -> tuple[dict[str, list[TaskOutput]], list[OutputLayout]]:
    """Return the outputs that task=multi_output uses on each side, and their layout. Raise UserError."""
    train = cache.train
    if isinstance(train, TransformedOutputsSplit):  # transforms may resize the labels
        train = train.transform_outputs(np.arange(1))
    assert isinstance(train, MultiOutputSplit)
    task_outputs: dict[str, list[TaskOutput]] = {side: [] for side in shapes}
    layouts = []
    for position, output in enumerate(task.tasks):
        names = _find_names(keys, task, position, shapes)
        labels = train.outputs[output.name].labels
        for side, name in names.items():
            shape = shapes[side][name]
            task_output = _find_task_output(f"{keys[side]}, {output.key}", output.task, name, shape, labels)
            task_outputs[side].append(task_output)
        classes = [] if task_output.classes is None else [task_output.classes]
        layouts.append(OutputLayout([*labels.shape[1:], *classes], [*labels.shape[1:]], labels.dtype.kind == "i"))
    return task_outputs, layouts


def _find_names(
    keys: Mapping[str, str],
    task: MultiOutputSettings,
    position: int,
    shapes: Shapes,
) -> dict[str, str]:
    """Return the name of an output on each side. The outputs of two models are in the same order.

    The config gives the name or the position of the output. If the models do not name their outputs, and return as many
    as the task has, the position in the task is used.
    """
    output = task.tasks[position]
    place = f"output[{output.output}]" if isinstance(output.output, int) else f"output.{output.output}"
    if names := _locate(keys, place, shapes):
        return names
    returned = next(iter(shapes.values()))
    is_named = any(name.startswith("output.") for side in shapes.values() for name in side)
    if is_named or isinstance(output.output, int) or len(returned) != len(task.outputs):
        key = ", ".join(keys.values())
        raise UserError(
            f"{key}: returns {', '.join(returned)}; {output.key}.output={output.output} is not among them; set it to a "
            "name or a position"
        )
    return {side: list(names)[position] for side, names in shapes.items()}


def _locate(keys: Mapping[str, str], place: str, shapes: Shapes) -> dict[str, str]:
    """Return the name of an output on each side, as `common.map.output_pairs` pairs outputs.

    Outputs of the same names are paired by name, others in their order.

    Args:
        keys: The config key and the factory of each side, for errors.
        place: The name of the output on one side or both.
        shapes: By side, the shape of each output for some examples.

    Returns:
        The names by side; none if no side has the output.

    Raises:
        UserError: The sides return different outputs, so that the counterpart of this output is unknown.
    """
    indices = {side: list(names).index(place) for side, names in shapes.items() if place in names}
    if not indices:
        return {}
    if len({frozenset(names) for names in shapes.values()}) == 1:
        return dict.fromkeys(shapes, place)
    index, sizes = next(iter(indices.values())), {len(names) for names in shapes.values()}
    if len({*indices.values()}) > 1 or len(sizes) > 1:
        returned = "; ".join(f"{keys[side]} returns {', '.join(names)}" for side, names in shapes.items())
        raise UserError(f"{returned}: it is not known which outputs are {place}; return the same names on both sides")
    return {side: list(names)[index] for side, names in shapes.items()}


def _find_embeddings(
    keys: Mapping[str, str], task: ContrastiveSettings, shapes: Shapes
) -> tuple[dict[str, list[str]], OutputLayout]:
    """Return the names of the embeddings on each side, and their layout [embeddings, size]. Raise UserError."""
    first = next(iter(shapes.values()))
    places = list(first) if task.embeddings is None else [f"output.{name}" for name in task.embeddings]
    located = [_locate(keys, place, shapes) for place in places]
    if not all(located):
        raise UserError(
            f"{', '.join(keys.values())}: returns {', '.join(first)}; task.embeddings={task.embeddings} are not all "
            "among them; correct it"
        )
    outputs = {side: [names[side] for names in located] for side in shapes}
    for side, names in outputs.items():
        side_shapes = [shapes[side][name] for name in names]
        is_pair = len(side_shapes) > 1 and len(side_shapes[0]) == 2 and len({*side_shapes}) == 1
        if not is_pair and not (len(side_shapes) == 1 and len(side_shapes[0]) == 3 and side_shapes[0][1] > 1):
            returned = ", ".join(f"{name} {format_shape(shapes[side][name])}" for name in names)
            raise UserError(
                f"{keys[side]}: returns {returned}; task=contrastive needs two or more embeddings [n, size] of one "
                "size, or one output [n, embeddings, size]; name them by task.embeddings=[...]"
            )
    shape = side_shapes[0][1:] if len(side_shapes) == 1 else (len(side_shapes), side_shapes[0][1])
    return outputs, OutputLayout([*shape], [], True)


def _find_task_output(key: str, task: TaskSettings, name: str, shape: Shape, labels: np.ndarray) -> TaskOutput:
    """Return one of several outputs for labels [n, ...] of the whole split. Raise UserError if it does not fit."""
    labels_shape = (shape[0], *labels.shape[1:])
    if isinstance(task, ClassificationSettings) and labels.dtype.kind == "i":
        if labels.shape[1:] == (1,) and len(shape) == 2:
            return TaskOutput(name, None, shape[1])
        expected, move, classes = find_class_axis(key, shape, labels_shape)
    elif isinstance(task, ClassificationSettings):
        expected, move, classes = "" if shape == labels_shape else format_shape(labels_shape), None, None
    else:
        moves = [move for move in MOVES if has_order(shape, labels_shape, move)]
        expected, move, classes = "" if moves else format_shape(labels_shape), next(iter(moves), None), None
    if expected:
        raise UserError(f"{key}: returns {format_shape(shape)}; {task.kind} needs {expected}")
    return TaskOutput(name, move, classes)
