"""Gradients of a step: of this rank before the reduction, before clipping, and as the optimizer receives them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
import torch

from common.recording.gradient_changes import find_changes
from torch_impl.record.arrays import copy_tensor, view_tensor
from torch_impl.record.weight_samples import WeightSamples

Arrays = dict[str, np.ndarray]


class RecordedGradients(NamedTuple):
    """The gradients of a step.

    Attributes:
        arrays: The gradients as they are named in a record.
        clip_factors: The factors by which the script multiplied gradients, by name.
        decays: The multiples of the weights that it then added, by name. Where these numbers explain the gradient, the
            record stores them instead of the gradient before the script changed it.
    """

    arrays: Arrays
    clip_factors: dict[str, float]
    decays: dict[str, float]


class GradientObserver:
    """Copies gradients by the name of the parameter.

    After each backward pass it copies all gradients, because it cannot know which pass is the last one before the
    script clips them. The next pass reuses the memory.
    """

    def __init__(self, name_parameters: Callable[[], dict[str, torch.Tensor]]) -> None:
        """Prepare to copy. name_parameters: returns the current parameters by name."""
        self._name_parameters, self._weights = name_parameters, WeightSamples()
        self._after_backward: Arrays = {}
        self._local: Arrays = {}
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def register_local(self, guard: Callable[[Callable[..., object]], object]) -> None:
        """Register a hook for each trainable parameter, which sees the gradient before ranks reduce it."""
        for name, parameter in self._name_parameters().items():
            if parameter.requires_grad:
                hook = guard(self._make_hook(name))
                self._handles.append(parameter.register_hook(hook))

    def remove(self) -> None:
        """Remove the hooks and all copies."""
        self.remove_local()
        self._after_backward.clear()

    def remove_local(self) -> None:
        """Remove the hooks that see the gradients before ranks reduce them."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._local.clear()

    def copy_after_backward(self) -> bool:
        """Copy the gradients at the end of a backward pass. Return whether any changed; True if none is visible."""
        parameters = self._name_parameters()
        has_changed = not parameters
        for name, parameter in parameters.items():
            if parameter.grad is None:
                self._after_backward.pop(name, None)
                continue
            memory = self._after_backward.get(name)
            if memory is not None and parameter.grad.layout == torch.strided and memory.shape == parameter.grad.shape:
                copy, gradient = torch.from_numpy(memory), parameter.grad.detach()
                has_changed = has_changed or not torch.equal(copy, gradient.to(copy))
                copy.copy_(gradient)
            else:
                has_changed = True
                self._after_backward[name] = copy_tensor(parameter.grad)
        return has_changed

    def may_have(self, tensors: Collection[torch.Tensor]) -> bool:
        """Check whether one of several parameters is the model's, or whether the model's own cannot be seen."""
        identities = {id(parameter) for parameter in self._name_parameters().values()}
        return not identities or any(id(tensor) in identities for tensor in tensors)

    def copy_before_clip(self) -> None:
        """Copy the gradients that the script clips, unless it has only added multiples of the weights to them.

        It may have divided or reduced them after the backward pass.
        """
        parameters = {name: x for name, x in self._name_parameters().items() if x.grad is not None}
        gradients = {name: view_tensor(x.grad) for name, x in parameters.items()}  # type: ignore[arg-type]
        are_known = gradients.keys() == self._after_backward.keys()
        if are_known:
            changed = {name: x for name, x in gradients.items() if not _are_equal(self._after_backward[name], x)}
            changes = find_changes(self._after_backward, changed, lambda name: view_tensor(parameters[name]))
            are_known = not (changes.factors or changes.others)
        if not are_known:
            self.copy_after_backward()

    def keep_weights(self) -> None:
        """Keep samples of the weights with which the first gradients of a step are computed."""
        self._weights.take(self._name_parameters())

    def have_weights_changed(self) -> bool:
        """Return whether the script has changed weights since `keep_weights`."""
        return bool(self._weights.list_changed(self._name_parameters()))

    def are_cleared(self) -> bool:
        """Check whether the script set all gradients to zero or None since the last backward pass."""
        parameters = self._name_parameters()
        computed = [name for name, gradient in self._after_backward.items() if gradient.any()]
        remaining = [parameters[name].grad for name in computed if name in parameters]
        return bool(computed) and not any(x is not None and bool(x.detach().any()) for x in remaining)

    def take(self, backward_scale: float, step_scale: float) -> RecordedGradients:
        """Return the gradients of a step. Call it immediately before the update.

        Args:
            backward_scale: The factor by which a gradient scaler multiplied the loss, or 1 without a scaler.
            step_scale: The factor that the gradients still contain, because a fused optimizer divides by it; else 1.
        """
        parameters = {name: x for name, x in self._name_parameters().items() if x.grad is not None}
        gradients, before, locals_ = Arrays(), Arrays(), Arrays()
        for name, parameter in parameters.items():
            unclipped = _divide(self._after_backward.get(name), backward_scale)
            local = _divide(self._local.get(name), backward_scale)
            gradient = _divide(copy_tensor(parameter.grad), step_scale)  # type: ignore[arg-type]
            assert gradient is not None
            if unclipped is not None and _are_equal(gradient, unclipped):
                gradient = unclipped  # frees the copy
            elif unclipped is not None:
                before[name] = unclipped
            gradients[name] = gradient
            if local is not None and not _are_equal(local, gradient):
                locals_[f"gradient_local/{name}"] = local
        changed = {name: gradients[name] for name in before}
        changes = find_changes(before, changed, lambda name: view_tensor(parameters[name]))
        self._local.clear()
        # First: if the record runs full, it stores samples of the last arrays, and the others are useless alone.
        arrays = {f"gradient/{name}": gradient for name, gradient in gradients.items()}
        arrays.update({f"gradient_unclipped/{name}": gradient for name, gradient in changes.others.items()})
        return RecordedGradients({**arrays, **locals_}, changes.factors, changes.decays)

    def take_cleared(self) -> RecordedGradients:
        """Return the gradients after the last backward pass, for a script that has updated and set them to zero."""
        self._local.clear()
        return RecordedGradients({f"gradient/{name}": x for name, x in self._after_backward.items()}, {}, {})

    def _make_hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def add(gradient: torch.Tensor) -> None:
            copy = copy_tensor(gradient)
            self._local[name] = self._local[name] + copy if name in self._local else copy

        return add


def _divide(array: np.ndarray | None, scale: float) -> np.ndarray | None:
    """Divide as a gradient scaler does: by a multiplication in the type of the array."""
    return array if array is None or scale == 1 else array * np.asarray(1 / scale, array.dtype)


def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
