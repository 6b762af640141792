"""Corpora: labelled sentence pairs (or single sentences) from the generator, from files or from the hub, as lists."""

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from common.config.schema import BuiltinNli, Files, Hub
from common.data import hub
from common.data.text.formats import (
    Columns,
    Records,
    arrow_rows,
    check_columns,
    find_file,
    json_lines,
    parquet,
    separated,
    show,
)
from common.errors import UserError

NO_GOLD_LABEL = (None, -1, "-1", "-", "")
MAX_INFERRED_CLASSES = 10_000  # more than any classification has: the label column must be another one


@dataclass(frozen=True)
class Split:
    """Examples as parallel lists: `labels` index the corpus's classes; `dropped` rows had no gold label."""

    premises: list[str]
    hypotheses: list[str] | None
    labels: list[int]
    dropped: int


@dataclass(frozen=True)
class Corpus:
    train: Split
    validation: Split
    classes: list[str]


@dataclass
class _Rows:
    """A split with its labels as they were read. Example i stands at `at` + `numbers[i]`."""

    at: str
    texts: list[list[str]]  # [premises] or [premises, hypotheses]
    labels: list[int | str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    dropped: int = 0
    untyped: bool = False  # CSV and TSV, where "1" may be an integer


def read_corpus(data: BuiltinNli | Files | Hub, classes: list[str] | None = None) -> Corpus:
    """Read both splits of a corpus. Raises UserError, which names the file and line or the key.

    `classes` are those of a checkpoint that already has a classification head: they then bind, in that order; else
    `data.classes` do, else those of the hub's ClassLabel, else those of the training split (integers: "0" to the
    largest; strings: sorted). Labels whose names the data tells meet the binding classes by name, so that the two may
    be ordered differently; other integers are indexes. Classes called LABEL_0 or 0 say nothing: position decides.
    """
    names: list[str] | None  # what the labels in the data mean
    bound = classes
    if isinstance(data, BuiltinNli):
        train, validation, names = _read_builtin(data)
    else:
        bound = classes or data.classes
        if isinstance(data, Files):
            names = data.classes
            train = _read_file("data.train", data.train, data)
            validation = _read_file("data.validation", data.validation, data)
        else:
            train, validation, names = _read_hub(data)
    names = names or classes or _infer(train)
    bound = bound or names
    outputs = _outputs(names, bound)
    return Corpus(_split(train, names, outputs), _split(validation, names, outputs), list(bound))


def identity(data: BuiltinNli | Files | Hub) -> dict[str, Any]:
    """What names a corpus without reading its text: neither a checkpoint's classes nor a branch's commit are in it."""
    key = asdict(data)
    del key["name"], key["allow_change"]
    if isinstance(data, BuiltinNli):
        from common.data.text import builtin_nli

        key["version"] = builtin_nli.VERSION
    if isinstance(data, Files):
        for split in ("train", "validation"):
            path, _ = find_file(f"data.{split}", key[split])
            stat = path.stat()
            key[split] = {"path": str(path.resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    return {"kind": type(data).__name__, **key}


# Labels


def _infer(rows: _Rows) -> list[str]:
    labels = _as_integers(rows.labels) if rows.untyped else rows.labels
    integers = [label for label in labels if isinstance(label, int)]
    count = max(integers) + 1 if integers else len(set(labels))
    if count > MAX_INFERRED_CLASSES:
        raise UserError(f"data.label: {count} classes in data.train; set it to the column that holds the classes")
    return [str(i) for i in range(count)] if integers else sorted({str(label) for label in labels})


def _as_integers(labels: list[int | str]) -> list[int | str]:
    if all(re.fullmatch("-?[0-9]{1,18}", str(label)) for label in labels):
        return [int(label) for label in labels]
    return labels


def _outputs(names: list[str], bound: list[str]) -> list[int]:
    """The index in `bound` of each of the data's class names."""
    if set(names) <= set(bound):
        return [bound.index(name) for name in names]
    if len(names) <= len(bound) and all(re.fullmatch("(LABEL_)?[0-9]+", name) for name in bound):
        return list(range(len(names)))
    raise UserError(
        f"data.classes: the data's classes {show.repr(names)} are not among the checkpoint's {show.repr(bound)}; "
        "set it to the checkpoint's names, in the order of the data's integer labels"
    )


def _split(rows: _Rows, names: list[str], outputs: list[int]) -> Split:
    """An integer label indexes `names`, a string is one of them; `outputs` has the class of each."""
    position = {name: i for i, name in enumerate(names)}
    labels = rows.labels
    if rows.untyped and not position.keys() >= set(labels):
        labels = _as_integers(labels)
    indexes = []
    for number, label in zip(rows.numbers, labels, strict=True):
        index = position.get(label) if isinstance(label, str) else label
        if index is None or not 0 <= index < len(names):
            classes = f"the {len(names)} classes {show.repr(names)}"
            raise UserError(f"{rows.at}{number}: label {show.repr(label)} is not one of {classes}; see data.classes")
        indexes.append(outputs[index])
    premises, *hypotheses = rows.texts
    return Split(premises, hypotheses[0] if hypotheses else None, indexes, rows.dropped)


# Sources


def _read_builtin(data: BuiltinNli) -> tuple[_Rows, _Rows, list[str]]:
    from common.data.text import builtin_nli

    def rows(examples: list[tuple[str, str, int]]) -> _Rows:
        premises, hypotheses, labels = (list(column) for column in zip(*examples, strict=True))
        return _Rows("example ", [premises, hypotheses], labels, list(range(1, len(labels) + 1)))

    train, validation = builtin_nli.generate(data.seed, data.train_examples, data.validation_examples)
    return rows(train), rows(validation), list(builtin_nli.CLASSES)


def _read_hub(data: Hub) -> tuple[_Rows, _Rows, list[str] | None]:
    source = f"data.path={data.path}"
    columns = _columns(data)
    splits = hub.load_splits(data)
    rows = []
    for key, split in splits.items():
        check_columns(source, columns, split.column_names)
        batches = split.select_columns([name for _, name in columns]).with_format("arrow").iter(batch_size=10_000)
        records = arrow_rows(batches, columns)
        rows.append(_collect(f"data.{key}", f"{source}, {getattr(data, key)}: row ", records, columns))
    names = getattr(splits["train_split"].features[data.label], "names", None)  # a ClassLabel has them
    if data.classes and not set(names or ()) <= set(data.classes):
        names = None
    return rows[0], rows[1], names or data.classes


def _read_file(key: str, name: str, data: Files) -> _Rows:
    path, suffix = find_file(key, name)
    columns = _columns(data)
    if suffix == ".parquet":
        return _collect(key, f"{path}: row ", parquet(path, columns), columns)
    records = separated(path, suffix, columns) if suffix in (".csv", ".tsv") else json_lines(path, columns)
    rows = _collect(key, f"{path}:", records, columns)
    rows.untyped = suffix in (".csv", ".tsv")
    return rows


def _collect(key: str, at: str, records: Records, columns: Columns) -> _Rows:
    (label_key, label_name), *text_columns = columns
    rows = _Rows(at, [[] for _ in text_columns])
    for number, (label, *texts) in records:
        if label in NO_GOLD_LABEL:
            rows.dropped += 1
            continue
        if type(label) not in (int, str):
            kind = type(label).__name__
            raise UserError(f"{at}{number}: {label_name!r} ({label_key}) is {kind}, not an integer or a string")
        if rows.labels and type(label) is not type(rows.labels[0]):
            raise UserError(
                f"{at}{number}: integers and strings are mixed in {label_name!r} ({label_key}); use one type"
            )
        for (text_key, name), text, column in zip(text_columns, texts, rows.texts, strict=True):
            if not isinstance(text, str):
                kind = "null" if text is None else type(text).__name__
                raise UserError(f"{at}{number}: {name!r} ({text_key}) is {kind}, not a string")
            if not text.isascii() and re.search("[\ud800-\udfff]", text):
                raise UserError(f"{at}{number}: {name!r} ({text_key}) has a lone surrogate, which no tokenizer reads")
            column.append(text)
        rows.labels.append(label)
        rows.numbers.append(number)
    if not rows.labels:
        raise UserError(f"{key}: no example with a gold label ({rows.dropped} rows without one); see data.label")
    return rows


def _columns(data: Files | Hub) -> Columns:
    columns = [("data.label", data.label), ("data.premise", data.premise)]
    return columns if data.hypothesis is None else [*columns, ("data.hypothesis", data.hypothesis)]
