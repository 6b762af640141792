"""Layers that draw the random numbers that common/data/dropout.py defines, which are equal on both sides."""

from collections.abc import Mapping

import torch
from torch.nn import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout, Module
from typing_extensions import override

from common.data.dropout import compute_normal_table, derive_site_key
from common.errors import UserError
from common.map.noise import ALPHA_VALUE, Noise, Operation, Unit
from torch_impl.attention import AlignedAttention, set_dropout_batch_first, unfold_attention
from torch_impl.dropout import TokenPositions, apply_mask, compute_mask, compute_normal, hash_rows, hash_token_rows

NO_BACKWARD_PASS = -1  # the result of torch._C._current_graph_task_id outside of backward passes
# The operation and the unit of each class of PyTorch.
NOISE_OF_CLASSES: dict[type[Module], tuple[Operation, Unit]] = {
    Dropout: ("drop", "element"),
    Dropout1d: ("drop", "channel"),
    Dropout2d: ("drop", "channel"),
    Dropout3d: ("drop", "channel"),
    AlphaDropout: ("alpha", "element"),
    FeatureAlphaDropout: ("alpha", "channel"),
}


def apply_noise(x: torch.Tensor, noise: Noise, draws: torch.Tensor) -> torch.Tensor:
    """Change the input of a layer with random numbers.

    Args:
        x: The input.
        noise: The operation, its unit and its strength.
        draws: Normal numbers, or booleans that are true for elements to keep, in a shape that broadcasts to x.
    """
    if noise.operation == "drop":
        return apply_mask(x, noise.factor, draws)
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    if noise.operation == "alpha":
        factor, term = noise.alpha_terms
        return (torch.where(draws, wide, ALPHA_VALUE) * factor + term).to(x.dtype)
    deviations = draws * noise.strength
    return (wide * (1 + deviations) if noise.operation == "multiply" else wide + deviations).to(x.dtype)


class KeyedLayer(Module):
    """A layer that draws from the examples' keys, which `use_dropout_keys` sets before each forward pass."""

    noise: Noise
    site_key: torch.Tensor  # the key of this layer, int64
    normal_table: torch.Tensor  # the result of `compute_normal_table`, if the layer draws normal numbers
    example_keys: torch.Tensor | None  # the keys of the examples, int64 [n]
    calls: int  # number of calls in this forward pass

    def _count_call(self) -> int:
        """Return the number of earlier calls in this forward pass. Calls during a backward pass do not count."""
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == NO_BACKWARD_PASS:
            self.calls += 1
            return self.calls - 1
        if self.calls > 1:
            raise UserError(
                "model.torch: a dropout or noise layer is called several times in a pass with activation "
                "checkpointing; give each call a layer of its own, or set model.dropout_semantics=native"
            )
        return 0


class AlignedLayer(KeyedLayer, Dropout):
    """A layer of PyTorch that draws from the examples' keys."""

    tokens: TokenPositions | None  # set if the input is unpadded tokens, [1, t, features]
    batch_first: bool = True  # otherwise the input is [tokens, n, features]

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        assert self.example_keys is not None, "the model must call use_dropout_keys in its forward pass"
        return apply_noise(x, self.noise, self._draw(x, self.example_keys, self.site_key + self._count_call()))

    @override
    def extra_repr(self) -> str:
        return str(self.noise)

    def _draw(self, x: torch.Tensor, example_keys: torch.Tensor, site_key: torch.Tensor) -> torch.Tensor:
        """Return the `draws` of `apply_noise` for the input x."""
        if self.noise.unit == "element":
            row_keys, features = self._hash_rows(x, example_keys, site_key), x.shape[-1]
        else:
            row_keys = hash_rows(example_keys, site_key, torch.Size())
            features = x.shape[1] if self.noise.unit == "channel" else 1
        if self.noise.is_normal:
            return compute_normal(row_keys, features, self.normal_table)
        draws = compute_mask(row_keys, features, self.noise.strength)
        return draws if self.noise.unit == "element" else draws.reshape(*draws.shape, *[1] * (x.dim() - 2))

    def _hash_rows(self, x: torch.Tensor, example_keys: torch.Tensor, site_key: torch.Tensor) -> torch.Tensor:
        if not self.batch_first:
            return hash_rows(example_keys, site_key, x.shape[:1]).transpose(0, 1)
        if self.tokens is not None and x.dim() == 3:
            return hash_token_rows(example_keys, site_key, self.tokens)
        return hash_rows(example_keys, site_key, x.shape[1:-1])


def find_dropout_layers(model: Module) -> dict[str, Noise]:
    """Return the noise of PyTorch's own dropout layers, by name. Layers with a rate of 0 have none."""
    return {
        name: Noise(*NOISE_OF_CLASSES[type(module)], module.p)
        for name, module in model.named_modules()
        if type(module) in NOISE_OF_CLASSES and module.p > 0
    }


def align_dropout(model: Module, noises: Mapping[str, Noise] | None = None) -> None:
    """Make the dropout layers and attentions of a model draw their random numbers from the examples' keys.

    Args:
        model: The model.
        noises: The noise of the layers to align, by name; if None, PyTorch's own dropout layers are aligned.
    """
    unfold_attention(model, AlignedAttention)
    set_dropout_batch_first(model)
    for name, noise in (find_dropout_layers(model) if noises is None else noises).items():
        module = model.get_submodule(name)
        module.register_buffer("site_key", torch.tensor(derive_site_key(name)), persistent=False)
        if noise.is_normal:
            module.register_buffer("normal_table", torch.from_numpy(compute_normal_table()), persistent=False)
        module.__class__ = AlignedLayer
        assert isinstance(module, AlignedLayer)
        module.noise, module.example_keys, module.tokens, module.calls = noise, None, None, 0


def use_dropout_keys(model: Module, example_keys: torch.Tensor | None, tokens: TokenPositions | None = None) -> None:
    """Set the example keys from which a model's aligned layers draw in the next forward pass.

    Args:
        model: The model.
        example_keys: The keys of the examples, int64 [n]; may be None in evaluation.
        tokens: The examples and positions of the tokens, if the batch has no padding.
    """
    for module in model.modules():
        if isinstance(module, KeyedLayer):
            module.example_keys, module.calls = example_keys, 0
        if isinstance(module, AlignedLayer):
            module.tokens = tokens
