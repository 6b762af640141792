"""Settings of the kinds of data.

Each field is a key of the config, such as data.train, and `key(SCOPE, ...)` declares its limits. The values of SOURCE
keys may differ between runs if the data that they name do not. HOST keys may differ from host to host, CURVE keys
decide the loss curve. The files in conf/data have the default values and explain the keys.

A new kind needs a schema here, a module in common/data that reads it, and a YAML file in conf/data.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import override

from common.config.keys import CURVE, HOST, SOURCE, Key, key
from common.config.transforms import parse_transforms
from common.errors import UserError


@dataclass(frozen=True)
class DataSettings:
    """Settings that every kind of data has.

    `allow_change` lets a run resume from a checkpoint that was trained on other data.
    """

    reads: ClassVar[str]  # the kind of input that models get: "text", "images" or "arrays"; see ModelSettings.reads
    cache: ClassVar[str]  # the module whose function `open_cache` builds and opens the cache of prepared examples
    source: ClassVar[str]  # the module whose functions `read` and `identify` read and fingerprint the source

    kind: str = key(SOURCE)
    allow_change: bool = key(HOST)

    @property
    def stream_block(self) -> int | None:
        """Return the number of examples of a block if the data is a stream, otherwise None."""
        return None

    def check(self) -> None:
        """Raise UserError if values do not fit together."""


@dataclass(frozen=True, kw_only=True)
class TransformedSettings(DataSettings):
    """Settings of data whose examples can be transformed. `common.data.transforms` has the transforms.

    Only these keys have defaults, because the kinds of data of an extension need not know them.
    """

    transforms: list[Any] = field(default_factory=list, metadata={"key": Key(CURVE, names_code=True)})
    transform_evaluation: bool = field(default=False, metadata={"key": Key(CURVE)})

    @override
    def check(self) -> None:
        parse_transforms(self.transforms)


@dataclass(frozen=True)
class TextSettings(DataSettings):
    """Labelled sentence pairs, or single sentences."""

    reads = "text"
    cache = "common.data.text.token_cache"


@dataclass(frozen=True)
class BuiltinNliSettings(TextSettings):
    """Sentence pairs that are generated from a grammar."""

    source = "common.data.text.builtin_nli"

    seed: int = key(SOURCE)
    train_examples: int = key(SOURCE, at_least=3)
    validation_examples: int = key(SOURCE, at_least=3)


@dataclass(frozen=True)
class TextColumnSettings(TextSettings):
    """Text in columns of these names. `hypothesis: null` means single sentences."""

    premise: str = key(SOURCE)
    hypothesis: str | None = key(SOURCE)
    label: str = key(SOURCE)
    classes: list[str] | None = key(SOURCE)

    @override
    def check(self) -> None:
        _check_classes(self.classes)


@dataclass(frozen=True)
class HubSourceSettings(DataSettings):
    """A data set of the Hugging Face hub at a pinned revision."""

    path: str = key(SOURCE)
    subset: str | None = key(SOURCE)
    revision: str = key(SOURCE)
    train_split: str = key(SOURCE)
    validation_split: str = key(SOURCE)


@dataclass(frozen=True)
class FilesSettings(TextColumnSettings):
    """JSON, CSV, TSV or Parquet files. A split is a file, a directory of files or a glob."""

    source = "common.data.text.text_files"

    train: str = key(SOURCE)
    validation: str = key(SOURCE)


@dataclass(frozen=True)
class HubSettings(TextColumnSettings, HubSourceSettings):
    """Text from the Hugging Face hub."""

    source = "common.data.text.hub_text"


@dataclass(frozen=True)
class ImageSettings(TransformedSettings):
    """Labelled images of one shape."""

    reads = "images"
    cache = "common.data.images.image_cache"


@dataclass(frozen=True)
class DigitsSettings(ImageSettings):
    """The 1,797 handwritten digits of scikit-learn, 8 x 8 pixels."""

    source = "common.data.images.digits"


@dataclass(frozen=True)
class IdxSettings(ImageSettings):
    """IDX files of images and labels, named as MNIST names them: train-*, and t10k-* for validation."""

    source = "common.data.images.idx"

    directory: str = key(SOURCE)


@dataclass(frozen=True)
class HubImagesSettings(ImageSettings, HubSourceSettings):
    """Labelled images from the Hugging Face hub."""

    source = "common.data.images.hub_images"

    image: str = key(SOURCE)
    label: str = key(SOURCE)


@dataclass(frozen=True)
class NamedArraysSettings(TransformedSettings):
    """Named arrays of each example. All arrays but the labels and the weights are model inputs.

    `weight: null` gives all examples the same weight. `channels` names the inputs whose last axis is channels.
    """

    reads = "arrays"
    cache = "common.data.arrays.array_cache"

    label: str = key(SOURCE)
    weight: str | None = key(SOURCE)
    classes: list[str] | None = key(SOURCE)
    channels: list[str] = key(CURVE)

    @override
    def check(self) -> None:
        super().check()
        _check_classes(self.classes)
        if self.weight == self.label:
            raise UserError(f"data.weight={self.weight}: is data.label too; name another array, or set it to null")


@dataclass(frozen=True)
class ArraysSettings(NamedArraysSettings):
    """Files of named arrays whose first axis is the examples."""

    source = "common.data.arrays.array_files"

    train: str = key(SOURCE)
    validation: str = key(SOURCE)


@dataclass(frozen=True)
class CustomDataSettings(NamedArraysSettings):
    """Examples that a function of the user yields.

    `read` names the function as module:function. The function gets `split` ("train" or "validation") and `arguments`.
    If it yields tuples, `names` has the names of their elements. The cache is built again if `version` changes.

    With `stream`, the function also gets `start`, the index of the first training example that it yields. Only
    blocks of `stream` examples are on the disk. `stream_examples` training examples are an epoch.
    """

    source = "common.data.arrays.user_arrays"

    read: str = key(SOURCE, names_code=True)
    arguments: dict[str, Any] = key(SOURCE)
    names: list[str] | None = key(SOURCE)
    version: str = key(SOURCE)
    stream: int | None = key(CURVE, at_least=8)
    stream_examples: int | None = key(CURVE, at_least=9)

    @property
    @override
    def stream_block(self) -> int | None:
        return self.stream

    @override
    def check(self) -> None:
        super().check()
        if (self.stream is None) != (self.stream_examples is None):
            raise UserError("data.stream and data.stream_examples: set both for a stream, or neither")
        if self.stream is None or self.stream_examples is None:
            return
        if self.stream >= self.stream_examples:
            raise UserError(
                f"data.stream={self.stream}: must be smaller than data.stream_examples; set both to null to cache all"
            )
        if self.transforms:
            raise UserError("data.transforms: examples of a stream are not transformed; let data.read do it, or set []")


@dataclass(frozen=True)
class LinesSettings(TransformedSettings):
    """Plain text, cut into blocks of train.max_length tokens. The label of a token is the next token.

    `tokenizer` is "bytes" or the path of a tokenizer.json.
    """

    reads = "arrays"
    cache = source = "common.data.arrays.line_cache"

    train: str = key(SOURCE)
    validation: str = key(SOURCE)
    tokenizer: str = key(SOURCE)


def _check_classes(classes: list[str] | None) -> None:
    if classes is not None and not len(set(classes)) == len(classes) > 0:
        raise UserError("data.classes: name each class once, or set it to null to read them from the labels")


DATA: dict[str, type[DataSettings]] = {
    "builtin_nli": BuiltinNliSettings,
    "files": FilesSettings,
    "hub": HubSettings,
    "digits": DigitsSettings,
    "idx": IdxSettings,
    "hub_images": HubImagesSettings,
    "arrays": ArraysSettings,
    "custom": CustomDataSettings,
    "lines": LinesSettings,
}
