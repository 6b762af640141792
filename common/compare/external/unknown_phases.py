"""Check for a column that may say the phase of a row in words that are not known."""

from collections.abc import Mapping

from common.compare.external.external_tables import ExternalRow, ExternalTable
from common.compare.external.external_values import find_words, is_absent
from common.compare.external.phases import is_phase_name
from common.errors import UserError


def refuse_unknown_phases(table: ExternalTable, columns: Mapping[str, str]) -> None:
    """Raise UserError if a column distinguishes the rows of one step, so that only some of them may be training rows.

    Without such a column, a repeated step means that training was restarted.

    Args:
        table: The rows.
        columns: The column of each metric.
    """
    for metric in ("loss", "eval_loss"):
        repeated = _list_repeated_rows(table, columns, metric)
        rows = [row.values for group in repeated for row in group]
        words = find_words(rows)
        for column in dict.fromkeys(name for row in rows for name in row if name not in columns.values()):
            if column not in words and not is_phase_name(column):
                continue
            entries = [[str(row.values.get(column, "")).strip() for row in group] for group in repeated]
            if all(len({*group}) == len(group) for group in entries):
                listed = " and ".join(sorted({entry or "nothing" for group in entries for entry in group})[:3])
                remedy = "keep the rows of one of them"
                if metric == "loss":
                    remedy = f"they are no words for training and validation: write train and val there, or {remedy}"
                raise UserError(
                    f"{repeated[0][1].position}: several rows of a step have a loss, and {column.removeprefix('val_')} "
                    f"is {listed}; {remedy}"
                )


def _list_repeated_rows(table: ExternalTable, columns: Mapping[str, str], metric: str) -> list[list[ExternalRow]]:
    """Return the rows with a metric of each step and epoch that has several such rows."""
    groups: dict[tuple[str, ...], list[ExternalRow]] = {}
    for row in table.rows if metric in columns else ():
        if not is_absent(row.values.get(columns[metric])):
            epoch = next((str(value) for name, value in row.values.items() if name.lower() == "epoch"), "")
            groups.setdefault((str(row.values.get(columns["step"])), epoch), []).append(row)
    return [group for group in groups.values() if len(group) > 1]
