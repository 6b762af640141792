"""Files with rows of training and of evaluations, which a column such as `mode` tells apart."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from common.compare.external.external_tables import STEP_COLUMNS, ExternalRow, ExternalTable
from common.errors import UserError

PHASE_COLUMNS = ("mode", "phase", "split", "stage", "subset", "loss type", "loss_type")  # lower-case names
TRAINING = ("train", "training", "fit")
EVALUATION = ("val", "valid", "validate", "validation", "eval", "evaluate", "evaluation", "dev")
TEST = ("test", "testing")
KNOWN_PHASES = ("", *TRAINING, *EVALUATION)  # of rows that are read; a row of another one is left out
NAMED_EVALUATION = re.compile(rf"({'|'.join(EVALUATION)})[^a-z]", re.IGNORECASE)  # start of a metric's name


def separate_phases(table: ExternalTable) -> None:
    """Give the metrics of evaluation rows names of their own, and leave out rows of a test split.

    The name of a metric gets the prefix `val_`. The step of an evaluation row may count something else, such as
    evaluated batches; then it becomes the step of the training row before.
    """
    column = _find_phase_column(table)
    if column is None:
        return
    known_rows = [(row, phase) for row in table.rows if (phase := _read_phase(row.values, column)) in KNOWN_PHASES]
    counts = Counter(_read_phase(row.values, column) for row in table.rows)
    known_positions = {_list_position(row.values) for row, phase in known_rows if phase not in EVALUATION}
    # mmcv counts evaluated examples there, even if the number of the last row fits
    counts_training = not table.has_means_of_steps and _is_in_order([row for row, _ in known_rows])
    position: dict[str, object] = {}
    rows = []
    for row, phase in known_rows:
        if phase not in EVALUATION:
            rows.append(row)
            position = dict(_list_position(row.values)) or position
            continue
        own_position = dict(_list_position(row.values))
        metrics = {_name_metric(name): value for name, value in row.values.items() if name not in own_position}
        keeps_step = counts_training or _list_position(row.values) in known_positions or not position
        rows.append(ExternalRow(row.position, (own_position if keeps_step else position) | metrics))
    if not rows:
        phases = ", ".join(sorted(counts))
        raise UserError(
            f"{table.rows[0].position}: {column} is {phases} in all rows, which is neither training nor "
            "validation; remove the column to read the rows as training"
        )
    table.rows = rows
    if evaluations := sorted({*counts} & {*EVALUATION}):
        table.notes.append(f"rows whose {column} is {' or '.join(evaluations)} are evaluations")
    for phase in sorted({*counts} - {*KNOWN_PHASES}):
        table.notes.append(f"{counts[phase]} row{'s' if counts[phase] > 1 else ''} left out whose {column} is {phase}")


def _name_metric(name: str) -> str:
    """Return the name of an evaluation's metric, with the prefix `val_` unless it has such a prefix already."""
    return name if NAMED_EVALUATION.match(name) else f"val_{name}"


def _is_in_order(rows: Sequence[ExternalRow]) -> bool:
    """Check whether each row has one step, and none has a smaller one than the row before."""
    steps = [[value for name, value in row.values.items() if name.lower() in STEP_COLUMNS] for row in rows]
    try:
        numbers = [float(str(step)) for (step,) in steps]
    except ValueError:  # no number, or not one step
        return False
    return numbers == sorted(numbers)


def _find_phase_column(table: ExternalTable) -> str | None:
    """Return the column that says which rows are training or evaluations; None if there is none."""
    names = dict.fromkeys(name for row in table.rows for name in row.values)
    for column in (name for name in names if name.lower() in PHASE_COLUMNS):
        phases = {_read_phase(row.values, column) for row in table.rows} - {""}
        if phases - {*TRAINING} and (phases & {*TRAINING} or phases <= {*EVALUATION, *TEST}):
            return column
    return None


def _read_phase(values: Mapping[str, object], column: str) -> str:
    return str(values.get(column) or "").strip().lower()


def _list_position(values: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    """Return the step and the epoch of a row, with the names of their columns."""
    return tuple((name, value) for name, value in values.items() if name.lower() in STEP_COLUMNS | {"epoch"})
