"""The kinds of models. A new kind is a schema here, a spec in common/models, a file on each side, and a YAML file."""

from dataclasses import dataclass
from typing import Any, ClassVar

from common.config.keys import CURVE, RUN, SOURCE, key
from common.errors import UserError

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


@dataclass(frozen=True)
class ModelSettings:
    """`name` is a label. dropout_semantics: aligned masks are the same on both sides, native ones each framework's."""

    reads: ClassVar[str]  # the data that it takes: "text", "images" or "arrays"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)  # those that it can learn
    spec: ClassVar[str]  # the module of its names, shapes and initial weights
    torch_module: ClassVar[str]  # the modules whose `build` makes it
    tf_module: ClassVar[str]
    supports_unpadded: ClassVar[bool] = False  # whether it computes on real tokens alone, where the inputs say how
    supports_aligned_dropout: ClassVar[bool] = False  # whether it uses the `dropout_keys` of batches
    matmul_precisions: ClassVar[tuple[str, ...]] = ()  # the values of train.matmul_precision that it can have

    kind: str = key(CURVE)
    name: str = key(SOURCE)
    dropout_semantics: str = key(CURVE, choices=("aligned", "native"))

    @property
    def has_aligned_dropout(self) -> bool:
        """Whether batches come with the keys of aligned masks."""
        return self.dropout_semantics == "aligned"

    @property
    def has_global_batch_norm(self) -> bool:
        """Whether BatchNorm has the statistics of all replicas' examples."""
        return False

    def check(self, max_length: int) -> None:
        """Raise UserError for values that do not fit together. max_length: tokens of an example."""


@dataclass(frozen=True)
class DropoutModelSettings(ModelSettings):
    """A model with one rate of dropout."""

    dropout: float = key(CURVE, at_least=0, below=1)

    @property
    def has_aligned_dropout(self) -> bool:
        return self.dropout > 0 and super().has_aligned_dropout


@dataclass(frozen=True)
class BertSettings(DropoutModelSettings):
    """A BERT for classification."""

    reads = "text"
    supports_aligned_dropout = True
    spec = "common.models.bert"
    torch_module = "torch_impl.models.bert"
    tf_module = "tf_impl.models.bert"
    supports_unpadded = True
    matmul_precisions = ("bfloat16",)


@dataclass(frozen=True)
class TrainedTokenizerSettings(DropoutModelSettings):
    """A model of text whose WordPiece tokenizer is trained on the corpus."""

    max_vocabulary: int = key(CURVE, at_least=100, unit="tokens")


@dataclass(frozen=True)
class RandomBertSettings(BertSettings, TrainedTokenizerSettings):
    """A BERT with random initial weights."""

    layers: int = key(CURVE, at_least=1)
    hidden_size: int = key(CURVE, at_least=1)
    heads: int = key(CURVE, at_least=1)
    intermediate_size: int = key(CURVE, at_least=1)
    max_positions: int = key(CURVE, unit="tokens")
    hidden_act: str = key(CURVE, choices=ACTIVATIONS)

    def check(self, max_length: int) -> None:
        """Raise UserError where the heads do not divide the hidden size, or examples are longer than the model."""
        if self.hidden_size % self.heads:
            raise UserError(f"model.heads={self.heads}: must divide model.hidden_size={self.hidden_size}; change one")
        check_max_length(max_length, self.max_positions)


@dataclass(frozen=True)
class PretrainedBertSettings(BertSettings):
    """A BERT checkpoint in Hugging Face format: a directory or a hub id."""

    checkpoint: str = key(SOURCE)
    revision: str | None = key(SOURCE)


@dataclass(frozen=True)
class ConvNetSettings(DropoutModelSettings):
    """Two convolutions and two linear layers, with random initial weights."""

    reads = "images"
    supports_aligned_dropout = True
    spec = "common.models.convnet"
    torch_module = "torch_impl.models.convnet"
    tf_module = "tf_impl.models.convnet"

    channels: list[int] = key(CURVE)
    kernel_size: int = key(CURVE)
    hidden_size: int = key(CURVE, at_least=1)

    def check(self, max_length: int) -> None:
        """Raise UserError where there are not two convolutions, or where their kernels have no centre."""
        if len(self.channels) != 2 or min(self.channels) < 1:
            raise UserError(f"model.channels={self.channels}: must be two numbers, each at least 1")
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise UserError(f"model.kernel_size={self.kernel_size}: must be odd and at least 1")


@dataclass(frozen=True)
class CustomModelSettings(ModelSettings):
    """A user's own: see docs/custom_models.md. torch, tf: functions as module:function; one of them may be null."""

    reads = "arrays"
    tasks = ("classification", "binary", "regression", "language_model", "custom")
    supports_aligned_dropout = True
    spec = "common.models.custom"
    torch_module = "torch_impl.models.custom"
    tf_module = "tf_impl.models.custom"

    torch: str | None = key(SOURCE)
    tf: str | None = key(SOURCE)
    arguments: dict[str, Any] = key(CURVE)
    map: str | None = key(SOURCE)
    checkpoint: str | None = key(SOURCE)
    sync_batch_norm: bool = key(CURVE)
    prove: bool = key(RUN)

    @property
    def has_global_batch_norm(self) -> bool:
        return self.sync_batch_norm

    def check(self, max_length: int) -> None:
        """Raise UserError where no function is named, or a map without two sides."""
        if self.torch is None and self.tf is None:
            raise UserError("model.torch: has no value; give model.torch=module:function, model.tf=... or both")
        if self.map is not None and None in (self.torch, self.tf):
            raise UserError(f"model.map={self.map}: pairs two models; give both model.torch and model.tf")


MODELS: dict[str, type[ModelSettings]] = {
    "bert": RandomBertSettings,
    "pretrained": PretrainedBertSettings,
    "convnet": ConvNetSettings,
    "custom": CustomModelSettings,
}


def check_max_length(max_length: int, positions: int) -> None:
    """Raise UserError unless `train.max_length` tokens fit the model's positions."""
    if max_length > positions:
        raise UserError(f"train.max_length={max_length}: beyond the model's {positions} positions; lower it")
