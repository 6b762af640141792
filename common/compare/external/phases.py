"""Files with rows of training and of evaluations, which a column such as `mode` tells apart."""

from collections.abc import Mapping

from common.compare.external.external_tables import STEP_COLUMNS, ExternalRow, ExternalTable

PHASE_COLUMNS = ("mode", "phase", "split", "stage", "subset", "loss type", "loss_type")  # lower-case names
TRAINING = ("train", "training")
EVALUATION = ("val", "valid", "validation", "eval", "evaluation", "dev")
TEST = ("test", "testing")


def separate_phases(table: ExternalTable) -> None:
    """Give the metrics of evaluation rows names of their own, and leave out rows of a test split.

    The name of a metric gets the prefix `val_`. An evaluation row keeps its step if a training row has that step.
    Otherwise the step counts something else, such as evaluated batches, and becomes that of the training row before.
    """
    column = _find_phase_column(table)
    if column is None:
        return
    phases = [_read_phase(row.values, column) for row in table.rows]
    is_training = [phase not in EVALUATION + TEST for phase in phases]
    known_positions = {_list_position(row.values) for row, known in zip(table.rows, is_training, strict=True) if known}
    position: dict[str, object] = {}
    rows = []
    for row, phase in zip(table.rows, phases, strict=True):
        if phase in EVALUATION:
            own_position = dict(_list_position(row.values))
            metrics = {f"val_{name}": value for name, value in row.values.items() if name not in own_position}
            is_known = _list_position(row.values) in known_positions or not position
            rows.append(ExternalRow(row.position, (own_position if is_known else position) | metrics))
        elif phase not in TEST:
            rows.append(row)
            position = dict(_list_position(row.values)) or position
    table.rows = rows
    table.notes.append(f"rows whose {column} is {' or '.join(sorted({*phases} & {*EVALUATION}))} are evaluations")
    if count := sum(phase in TEST for phase in phases):
        table.notes.append(f"{count} rows left out whose {column} is test")


def _find_phase_column(table: ExternalTable) -> str | None:
    """Return the column that says which rows are evaluations; None if there is none, or if it has other values too."""
    names = dict.fromkeys(name for row in table.rows for name in row.values)
    for column in (name for name in names if name.lower() in PHASE_COLUMNS):
        phases = {_read_phase(row.values, column) for row in table.rows} - {""}
        if phases <= {*TRAINING, *EVALUATION, *TEST} and phases & {*EVALUATION, *TEST}:
            return column
    return None


def _read_phase(values: Mapping[str, object], column: str) -> str:
    return str(values.get(column) or "").strip().lower()


def _list_position(values: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    """Return the step and the epoch of a row, with the names of their columns."""
    return tuple((name, value) for name, value in values.items() if name.lower() in STEP_COLUMNS | {"epoch"})
