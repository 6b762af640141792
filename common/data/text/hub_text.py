"""A data set of the Hugging Face hub as a source of text."""

from functools import partial
from typing import Any

from common.config.data import HubSettings
from common.data import hub
from common.data.identity import collect_source_keys
from common.data.required_columns import RequiredColumns, check_columns
from common.data.text.csv_rows import BATCH, iterate_arrow_rows
from common.data.text.text_rows import NumberedRows, RowReader, TextRows, TextSource, list_required_columns


def read(data: HubSettings) -> TextSource:
    """Both splits, to be read. Raises UserError, which names the key or the row."""
    at = f"data.path={data.path}"
    columns = list_required_columns(data)
    splits = hub.load_splits(data)
    rows = []
    for key, split in splits.items():
        check_columns(at, columns, split.column_names)
        selected = split.select_columns([name for _, name in columns]).with_format("arrow")
        part = RowReader(f"{at}, {getattr(data, key)}: row ", partial(_records, selected, columns))
        rows.append(TextRows(f"data.{key}", columns, [part]))
    names = getattr(splits["train_split"].features[data.label], "names", None)  # a ClassLabel has them
    if data.classes and not set(names or ()) <= set(data.classes):
        names = None
    return TextSource(rows[0], rows[1], names=names or data.classes, classes=data.classes)


def _records(split: Any, columns: RequiredColumns) -> NumberedRows:
    return iterate_arrow_rows(split.iter(batch_size=BATCH), columns)


def identify(data: HubSettings) -> dict[str, Any]:
    """What names the corpus: the keys. A commit names the content; of a branch only its name is known."""
    return collect_source_keys(data)
