"""A data set of the Hugging Face hub as a source of text."""

from functools import partial
from typing import Any

from common.config.data import HubSettings
from common.data import hub
from common.data.columns import NamedColumns, check_columns
from common.data.identity import source_keys
from common.data.text.formats import BATCH, arrow_rows
from common.data.text.rows import Part, Records, Rows, Source, named_columns


def read(data: HubSettings) -> Source:
    """Both splits, to be read. Raises UserError, which names the key or the row."""
    at = f"data.path={data.path}"
    columns = named_columns(data)
    splits = hub.load_splits(data)
    rows = []
    for key, split in splits.items():
        check_columns(at, columns, split.column_names)
        selected = split.select_columns([name for _, name in columns]).with_format("arrow")
        part = Part(f"{at}, {getattr(data, key)}: row ", partial(_records, selected, columns))
        rows.append(Rows(f"data.{key}", columns, [part]))
    names = getattr(splits["train_split"].features[data.label], "names", None)  # a ClassLabel has them
    if data.classes and not set(names or ()) <= set(data.classes):
        names = None
    return Source(rows[0], rows[1], names=names or data.classes, classes=data.classes)


def _records(split: Any, columns: NamedColumns) -> Records:
    return arrow_rows(split.iter(batch_size=BATCH), columns)


def identity(data: HubSettings) -> dict[str, Any]:
    """What names the corpus: the keys. A commit names the content; of a branch only its name is known."""
    return source_keys(data)
