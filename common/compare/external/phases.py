"""Files with rows of training and of evaluations, which a column such as `mode` tells apart."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import groupby

from common.compare.external.external_tables import STEP_COLUMNS, ExternalRow, ExternalTable
from common.compare.external.external_values import is_absent
from common.errors import UserError

# Lower-case names of columns that say the phase, also if not every row is of training or of an evaluation
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
KNOWN_PHASES = ("", *TRAINING, *EVALUATION)  # of rows that are read; a row of another one is left out
Position = tuple[tuple[str, object], ...]  # the names and values of a row's step and epoch
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
    # mmcv counts evaluated examples there, even if the number of the last row fits
    counts_training = not table.has_means_of_steps and _is_in_order(known_rows)
    blocks = [
        (evaluates, [row for row, _ in block])
        for evaluates, block in groupby(zip(known_rows, is_evaluation, strict=True), lambda pair: pair[1])
    ]
    evaluation_blocks = [block for evaluates, block in blocks if evaluates]
    position: dict[str, object] = {}
    rows, averaged_count = [], 0
    for evaluates, block in blocks:
        if not evaluates:
            rows += block
            position = next((dict(own) for row in reversed(block) if (own := _list_position(row.values))), position)
            continue
        if position and _has_batches(block, evaluation_blocks, known_positions):
            averaged_count += 1
            rows.append(ExternalRow(block[-1].position, position | _average([_rename_metrics(row) for row in block])))
            continue
        for row in block:
            own_position = _list_position(row.values)
            keeps_step = counts_training or own_position in known_positions or not position
            rows.append(
                ExternalRow(row.position, (dict(own_position) if keeps_step else position) | _rename_metrics(row))
            )
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
    block: Sequence[ExternalRow], evaluation_blocks: Sequence[Sequence[ExternalRow]], known_positions: Set[Position]
) -> bool:
    """Check whether consecutive rows of evaluations are the batches of one evaluation.

    They have one step, or count from 0 or 1 and are no table of the evaluations after each training step: the next
    evaluation counts from there again, or there are no training rows of the same steps.
    """
    if len(block) < 2:
        return False
    positions = [_list_position(row.values) for row in block]
    if len({*positions}) == 1:
        return True
    starts = [_list_steps(other)[:1] for other in evaluation_blocks]
    steps = _list_steps(block)
    if steps[0] not in (0, 1) or steps != [steps[0] + number for number in range(len(block))]:
        return False
    return starts.count([steps[0]]) > 1 or not {*positions} <= known_positions


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
    """Return the step of each row; NaN if it has no step, several ones, or one that is no number."""
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
    """Return the column that says which rows are training or evaluations; None if there is none."""
    names = dict.fromkeys(name for row in table.rows for name in row.values)
    for column in (name for name in names if name.lower() in PHASE_COLUMNS or name.lower() in FLAGS):
        phases = {_read_phase(row.values, column) for row in table.rows} - {""}
        if phases - {*TRAINING} and (phases & {*TRAINING} or phases <= {*EVALUATION, *TEST}):
            return column
    return None


def _read_phase(values: Mapping[str, object], column: str) -> str:
    """Return the phase of a row. A flag such as `is_train` says whether a row is of one of two phases."""
    text = _read_text(values, column)
    if column.lower() not in FLAGS or not text:
        return text
    is_set = {"true": True, "false": False} | ({"1": True, "0": False} if column.lower().startswith("is_") else {})
    if text not in is_set:
        return text
    return FLAGS[column.lower()] if is_set[text] else OTHER_PHASE[FLAGS[column.lower()]]


def _read_text(values: Mapping[str, object], column: str) -> str:
    entry = values.get(column)
    return "" if entry is None else str(entry).strip().lower()


def _list_position(values: Mapping[str, object]) -> Position:
    """Return the step and the epoch of a row, with the names of their columns."""
    return tuple((name, value) for name, value in values.items() if name.lower() in STEP_COLUMNS | {"epoch"})
