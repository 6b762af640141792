"""Settings of the kinds of models.

Each field is a key of the config, such as model.dropout, and `key(SCOPE, ...)` declares its limits. CURVE keys decide
the loss curve. The values of SOURCE keys may differ if the weights that they name do not. RUN keys must only be the
same on all hosts. The files in conf/model have the default values and explain the keys.

A new kind needs a schema here, a spec in common/models, a module in `models` of each side, and a YAML file in
conf/model.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from common.config.keys import CURVE, RUN, SOURCE, key
from common.errors import UserError

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


@dataclass(frozen=True)
class ModelSettings:
    """Settings that every kind of model has.

    `name` is a label. With `dropout_semantics: aligned` both sides use the same dropout masks, with `native` each
    framework draws its own.
    """

    reads: ClassVar[str]  # the kind of input that the model takes: "text", "images" or "arrays"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)  # the kinds of tasks that the model can learn
    spec: ClassVar[str]  # the module with the names, shapes and initial values of the parameters
    torch_module: ClassVar[str]  # the module whose function `build` makes the PyTorch model
    tf_module: ClassVar[str]  # the module whose function `build` makes the Keras model
    supports_unpadded: ClassVar[bool] = False  # whether the model can compute on the tokens without any padding
    supports_aligned_dropout: ClassVar[bool] = False  # whether the model draws masks from the `dropout_keys` of a batch
    matmul_precisions: ClassVar[tuple[str, ...]] = ()  # the values of train.matmul_precision that the model supports

    kind: str = key(CURVE)
    name: str = key(SOURCE)
    dropout_semantics: str = key(CURVE, choices=("aligned", "native"))

    @property
    def has_aligned_dropout(self) -> bool:
        """Return whether batches have `dropout_keys`, from which both sides draw the same dropout masks."""
        return self.dropout_semantics == "aligned"

    @property
    def has_global_batch_norm(self) -> bool:
        """Return whether BatchNorm uses statistics of the global batch, not of each replica's share."""
        return False

    def check(self, max_length: int) -> None:
        """Raise UserError if values do not fit together.

        Args:
            max_length: the largest number of tokens of an example, `train.max_length`.
        """


@dataclass(frozen=True)
class DropoutModelSettings(ModelSettings):
    """A model with one rate of dropout."""

    dropout: float = key(CURVE, at_least=0, below=1)

    @property
    @override
    def has_aligned_dropout(self) -> bool:
        return self.dropout > 0 and super().has_aligned_dropout


@dataclass(frozen=True)
class BertSettings(DropoutModelSettings):
    """A BERT for the classification of text."""

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

    @override
    def check(self, max_length: int) -> None:
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

    @override
    def check(self, max_length: int) -> None:
        if len(self.channels) != 2 or min(self.channels) < 1:
            raise UserError(f"model.channels={self.channels}: must be two numbers, each at least 1")
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise UserError(f"model.kernel_size={self.kernel_size}: must be odd and at least 1")


@dataclass(frozen=True)
class CustomModelSettings(ModelSettings):
    """A model of the user, as docs/custom_models.md describes it.

    `torch` and `tf` name the functions that make the model, as module:function. One of them may be null. `keras` names
    the function of a Keras model instead, which both sides call.
    """

    reads = "arrays"
    tasks = ("classification", "binary", "regression", "language_model", "custom", "multi_output", "contrastive")
    supports_aligned_dropout = True
    spec = "common.models.custom"
    torch_module = "torch_impl.models.custom"
    tf_module = "tf_impl.models.custom"

    torch: str | None = key(SOURCE, names_code=True)
    tf: str | None = key(SOURCE, names_code=True)
    keras: str | None = key(SOURCE, names_code=True)
    arguments: dict[str, Any] = key(CURVE)  # OmegaConf knows no other type for values of all kinds
    map: str | None = key(SOURCE)  # the file that pairs the variables of both models
    checkpoint: str | None = key(SOURCE)
    sync_batch_norm: bool = key(CURVE)
    buffers: str = key(CURVE, choices=("equal", "average"))  # how replicas keep the buffers that forward passes change
    prove: bool = key(RUN)
    allow_unpaired: bool = key(RUN)

    @property
    @override
    def has_global_batch_norm(self) -> bool:
        return self.sync_batch_norm

    @property
    def factories(self) -> dict[str, str]:
        """Return the functions that make the model by side, "torch" and "tf"."""
        named = {"torch": self.keras or self.torch, "tf": self.keras or self.tf}
        return {side: factory for side, factory in named.items() if factory is not None}

    def get_key(self, side: str) -> str:
        """Return the config key that names the function of a side."""
        return f"model.{side}" if self.keras is None else "model.keras"

    @override
    def check(self, max_length: int) -> None:
        for side in ("torch", "tf"):
            if self.keras is not None and getattr(self, side) is not None:
                raise UserError(
                    f"model.keras={self.keras}: makes the models of both sides; remove it or model.{side}="
                    f"{getattr(self, side)}"
                )
        if not self.factories:
            raise UserError("model.torch: has no value; give model.torch=module:function, model.tf=... or both")
        if self.map is not None and len(self.factories) < 2:
            raise UserError(f"model.map={self.map}: pairs two models; give both model.torch and model.tf")


MODELS: dict[str, type[ModelSettings]] = {
    "bert": RandomBertSettings,
    "pretrained": PretrainedBertSettings,
    "convnet": ConvNetSettings,
    "custom": CustomModelSettings,
}

BERT_LIBRARIES = {"torch": "transformers", "tf": "keras_hub"}


def find_library(model: ModelSettings, framework: str) -> str | None:
    """Return the module of the library that a side's BERT is from; None for other models."""
    return BERT_LIBRARIES[framework] if isinstance(model, BertSettings) else None


def check_max_length(max_length: int, positions: int) -> None:
    """Raise UserError if a model has fewer positions than the longest example has tokens."""
    if max_length > positions:
        raise UserError(f"train.max_length={max_length}: beyond the model's {positions} positions; lower it")
