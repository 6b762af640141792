"""Separation of training rows and evaluation rows in a file with a column such as `mode`."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import groupby

from common.compare.external.external_tables import STEP_COLUMNS, ExternalRow, ExternalTable
from common.compare.external.external_values import find_words, is_absent
from common.errors import UserError

# Lower-case names of columns that say the phase, even if some rows are neither of training nor of an evaluation
PHASE_COLUMNS = ("mode", "phase", "split", "stage", "subset", "loss type", "loss_type")
TRAINING = ("train", "training", "fit")
EVALUATION = ("val", "valid", "validate", "validation", "eval", "evaluate", "evaluation", "dev")
TEST = ("test", "testing")
OTHER_PHASE = {"training": "evaluation", "evaluation": "training"}
# The phase of rows in which a column is true, by its lower-case name; false stands for the other phase.
FLAGS = {
    f"{prefix}{name}": "training" if name in TRAINING else "evaluation"
    for prefix in ("", "is_")
    for name in ("train", "training", "val", "validation", "eval", "evaluation")
}
TRUE, FALSE = ("true", "t", "yes", "y"), ("false", "f", "no", "n")  # entries of a flag
TRUE_NUMBERS, FALSE_NUMBERS = ("1", "1.0"), ("0", "0.0")  # entries of a flag whose name begins with is_
KNOWN_PHASES = ("", *TRAINING, *EVALUATION)  # rows of other phases are left out
RowPosition = tuple[tuple[str, object], ...]  # the names and values of a row's step and epoch
NAMED_EVALUATION = re.compile(rf"({'|'.join(EVALUATION)})[^a-z]", re.IGNORECASE)  # start of a metric's name


def separate_phases(table: ExternalTable) -> None:
    """Give the metrics of evaluation rows names of their own, and leave out rows of a test split.

    The name of a metric gets the prefix `val_`. The step of an evaluation row may count something else, such as
    evaluated batches; then it becomes the step of the training row before. Rows of the batches of one evaluation become
    one row.
    """
    column = _find_phase_column(table)
    if column is None:
        return
    known_rows = [row for row in table.rows if _read_phase(row.values, column) in KNOWN_PHASES]
    is_evaluation = [_read_phase(row.values, column) in EVALUATION for row in known_rows]
    known_positions = {
        _list_position(row.values) for row, evaluates in zip(known_rows, is_evaluation, strict=True) if not evaluates
    }
    # In mmcv's files the step of an evaluation row counts evaluated examples, even if the steps are in order
    counts_training = not table.has_means_of_steps and _is_in_order(known_rows)
    blocks = [
        (evaluates, [row for row, _ in block])
        for evaluates, block in groupby(zip(known_rows, is_evaluation, strict=True), lambda pair: pair[1])
    ]
    evaluation_blocks = [block for evaluates, block in blocks if evaluates]
    position: dict[str, object] = {}  # step and epoch of the training row before
    rows, averaged_count = [], 0
    for evaluates, block in blocks:
        if not evaluates:
            rows += block
            position = next((dict(own) for row in reversed(block) if (own := _list_position(row.values))), position)
            continue
        renamed_rows = [ExternalRow(row.position, _rename_metrics(row)) for row in block]
        own_positions = [_list_position(row.values) for row in block]
        if _has_batches(block, evaluation_blocks, known_positions, position):
            averaged_count += 1
            renamed_rows = [ExternalRow(block[-1].position, _average([row.values for row in renamed_rows]))]
            own_positions = own_positions[:1] if len({*own_positions}) == 1 else [tuple(position.items())]
        for row, own_position in zip(renamed_rows, own_positions, strict=True):
            keeps_step = counts_training or own_position in known_positions or not position
            rows.append(ExternalRow(row.position, (dict(own_position) if keeps_step else position) | row.values))
    counts = Counter(_read_phase(row.values, column) for row in table.rows)
    if not rows:
        phases = ", ".join(sorted(counts))
        raise UserError(
            f"{table.rows[0].position}: {column} is {phases} in all rows, which is neither training nor "
            "validation; remove the column to read the rows as training"
        )
    if evaluation_blocks:
        texts = sorted({_read_text(row.values, column) for block in evaluation_blocks for row in block})
        table.notes.append(f"rows whose {column} is {' or '.join(texts)} are evaluations")
    if averaged_count:
        table.notes.append(
            f"{averaged_count} evaluation{'s have' if averaged_count > 1 else ' has'} several rows, such as one for "
            "each batch; their values are averaged, each row alike"
        )
    for phase in sorted({*counts} - {*KNOWN_PHASES}):
        table.notes.append(f"{counts[phase]} row{'s' if counts[phase] > 1 else ''} left out whose {column} is {phase}")
    table.rows = rows


def _has_batches(
    block: Sequence[ExternalRow],
    evaluation_blocks: Sequence[Sequence[ExternalRow]],
    known_positions: Set[RowPosition],
    position: Mapping[str, object],
) -> bool:
    """Check whether consecutive rows of evaluations are the batches of one evaluation.

    The rows are batches of one evaluation if all have the same step, or if their steps count up from 0 or 1. But each
    row counts as the evaluation of a training step if the training rows before have the same steps, and no other block
    starts with the same step.

    Args:
        block: The rows.
        evaluation_blocks: The consecutive rows of each evaluation.
        known_positions: The positions of training rows.
        position: The position of the training row before; empty if there is none.
    """
    if len(block) < 2 or find_words([row.values for row in block]):
        return False
    positions = [_list_position(row.values) for row in block]
    if len({*positions}) == 1:
        return bool(positions[0] or position)
    starts = [_list_steps(other)[:1] for other in evaluation_blocks]
    steps = _list_steps(block)
    if not position or steps[0] not in (0, 1) or steps != [steps[0] + number for number in range(len(block))]:
        return False
    is_table = {*positions} <= known_positions and dict(positions[-1]) == position
    return starts.count([steps[0]]) > 1 or not is_table


def _average(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the mean of each value over the rows that have a number there, and the last entry of other values."""
    averages: dict[str, object] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        entries = [row[name] for row in rows if not is_absent(row.get(name))]
        try:
            averages[name] = sum(float(str(entry)) for entry in entries) / len(entries) if entries else None
        except ValueError:
            averages[name] = entries[-1]
    return averages


def _rename_metrics(row: ExternalRow) -> dict[str, object]:
    """Return the values of an evaluation row without its position, under names of their own."""
    own_position = dict(_list_position(row.values))
    return {_name_metric(name): value for name, value in row.values.items() if name not in own_position}


def _name_metric(name: str) -> str:
    """Return the name of an evaluation's metric, with the prefix `val_` unless it has such a prefix already."""
    return name if NAMED_EVALUATION.match(name) else f"val_{name}"


def _is_in_order(rows: Sequence[ExternalRow]) -> bool:
    """Check whether each row has one step, and none has a smaller one than the row before."""
    steps = _list_steps(rows)
    return not any(map(math.isnan, steps)) and steps == sorted(steps)


def _list_steps(rows: Sequence[ExternalRow]) -> list[float]:
    """Return the step of each row; NaN if the row has no step or several steps, or if the step is not a number."""
    steps = []
    for row in rows:
        entries = [value for name, value in row.values.items() if name.lower() in STEP_COLUMNS]
        try:
            (step,) = (float(str(entry)) for entry in entries)
        except ValueError:
            step = math.nan
        steps.append(step)
    return steps


def _find_phase_column(table: ExternalTable) -> str | None:
    """Return the column that says which rows are training or evaluations; None if there is none.

    A column of any name is accepted if it has only words for training and evaluations.
    """
    names = dict.fromkeys(name for row in table.rows for name in row.values)
    for column in sorted(names, key=lambda name: not is_phase_name(name)):
        is_named = is_phase_name(column)
        known = {*KNOWN_PHASES, *TEST}
        if not is_named and not all(_read_phase(row.values, column) in known for row in table.rows):
            continue
        phases = {_read_phase(row.values, column) for row in table.rows} - {""}
        is_without_training = is_named and phases <= {*EVALUATION, *TEST}
        if phases - {*TRAINING} and (phases & {*TRAINING} or is_without_training):
            return column
    return None


def is_phase_name(column: str) -> bool:
    """Check whether a column says the phase of a row by its name, such as phase or is_train."""
    name = _normalize_name(column)
    return name in PHASE_COLUMNS or name in FLAGS


def _normalize_name(column: str) -> str:
    """Return the name of a column in lower case, such as is_train for isTrain."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", column).lower()


def _read_phase(values: Mapping[str, object], column: str) -> str:
    """Return the phase of a row. A flag such as `is_train` says whether a row is of one of two phases."""
    text, name = _read_text(values, column), _normalize_name(column)
    if name not in FLAGS:
        return text
    has_numbers = name.startswith("is_")  # else a number may be a metric
    if text in TRUE or (has_numbers and text in TRUE_NUMBERS):
        return FLAGS[name]
    return OTHER_PHASE[FLAGS[name]] if text in FALSE or (has_numbers and text in FALSE_NUMBERS) else text


def _read_text(values: Mapping[str, object], column: str) -> str:
    entry = values.get(column)
    return "" if entry is None else str(entry).strip().lower()


def _list_position(values: Mapping[str, object]) -> RowPosition:
    """Return the step and the epoch of a row, with the names of their columns."""
    return tuple((name, value) for name, value in values.items() if name.lower() in STEP_COLUMNS | {"epoch"})
