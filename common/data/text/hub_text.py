"""A data set of the Hugging Face hub as a source of text."""

from functools import partial
from typing import TYPE_CHECKING

from common.config.data import HubSettings
from common.data import hub
from common.data.identity import Identity, collect_source_keys
from common.data.required_columns import RequiredColumns, check_columns
from common.data.text.arrow_rows import BATCH, iterate_arrow_rows
from common.data.text.text_rows import NumberedRows, RowReader, TextRows, TextSource, list_required_columns

if TYPE_CHECKING:
    import datasets


def read(data: HubSettings) -> TextSource:
    """Return both splits, whose rows are read when they are iterated over.

    Raises:
        UserError: If the data set cannot be loaded or does not have the columns.
    """
    location = f"data.path={data.path}"
    columns = list_required_columns(data)
    splits = hub.load_splits(data)
    rows = []
    for key, split in splits.items():
        check_columns(location, columns, split.column_names)
        selected = split.select_columns([name for _, name in columns]).with_format("arrow")
        reader = RowReader(f"{location}, {getattr(data, key)}: row ", partial(_read_rows, selected, columns))
        rows.append(TextRows(f"data.{key}", columns, [reader]))
    names = getattr(splits["train_split"].features[data.label], "names", None)  # only a ClassLabel has names
    if data.classes and not set(names or ()) <= set(data.classes):
        names = None  # data.classes renames the classes, in the order of the integer labels
    return TextSource(rows[0], rows[1], data_classes=names or data.classes, model_classes=data.classes)


def _read_rows(split: "datasets.Dataset", columns: RequiredColumns) -> NumberedRows:
    return iterate_arrow_rows(split.iter(batch_size=BATCH), columns)


def identify(data: HubSettings) -> Identity:
    """Return the config keys. A revision that is a commit identifies the content, but a branch does not."""
    return collect_source_keys(data)
