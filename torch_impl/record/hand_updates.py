"""Updates that a script computes by hand, without an optimizer: how the recorder notices and describes them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from torch_impl.record.arrays import copy_tensor, view_tensor

SGD = "torch.optim.sgd.SGD"
BY_HAND = "update by hand"  # name of the optimizer if its updates are not those of SGD
MOST_DIGITS = 9  # of a learning rate, as many as float32 has


class HandUpdates(torch.optim.Optimizer):
    """Stands for the optimizer of a script that has none. The recorder calls `step` after the script has updated.

    Attributes:
        is_descent: Whether all updates so far subtracted a learning rate times the gradient, as SGD does.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Begin before the first update. parameters: the trainable parameters by name."""
        super().__init__(list(parameters.values()), {"lr": float("nan")})
        self.is_descent = True
        self._parameters = dict(parameters)
        self._before: dict[str, np.ndarray] = {}

    @property
    def name(self) -> str:
        """Return the name of the optimizer that computes the same updates."""
        return SGD if self.is_descent else BY_HAND

    def keep_weights(self) -> None:
        """Keep the weights before the next update."""
        self._before = {name: copy_tensor(parameter) for name, parameter in self._parameters.items()}

    def have_weights_changed(self) -> bool:
        """Check whether the script has changed weights since they were kept."""
        return any(not np.array_equal(x, view_tensor(self._parameters[name])) for name, x in self._before.items())

    def shares_parameters(self, optimizer: torch.optim.Optimizer) -> bool:
        """Check whether another optimizer updates parameters of the model."""
        updated = {id(x) for group in optimizer.param_groups for x in group["params"]}
        return optimizer is not self and not updated.isdisjoint(map(id, self._parameters.values()))

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Change nothing: the hooks of this step record the update of the script."""

    def explain(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Find the learning rate of an update, and the parameters that it leaves out.

        Args:
            gradients: The arrays gradient/NAME of the parameters.
        """
        gradients = {name: gradients[f"gradient/{name}"] for name in self._before if f"gradient/{name}" in gradients}
        after = {name: view_tensor(self._parameters[name]) for name in gradients}
        changed = {name for name, x in after.items() if not np.array_equal(x, self._before[name])}
        rate = _fit_rate([(self._before[name], after[name], gradients[name]) for name in sorted(changed)])
        self.is_descent = self.is_descent and rate is not None
        omitted = {
            name
            for name in after.keys() - changed
            if rate is not None and not _is_descent(rate, self._before[name], after[name], gradients[name])
        }
        group = self.param_groups[0]
        group["lr"] = float("nan") if rate is None else rate
        group["params"] = [x for name, x in self._parameters.items() if name not in omitted]


def _fit_rate(updates: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> float | None:
    """Return the shortest learning rate that explains updates of SGD; None if none does.

    Args:
        updates: The weights before and after the update and the gradient of each parameter.
    """
    moves = [(after.astype(np.float64) - before, gradient) for before, after, gradient in updates]
    norm = sum(float(np.vdot(gradient.astype(np.float64), gradient)) for _, gradient in moves)
    if not norm:
        return None
    rate = -sum(float(np.vdot(move, gradient)) for move, gradient in moves) / norm
    candidates = [float(f"{rate:.{digits}g}") for digits in range(1, MOST_DIGITS + 1)]
    return next((x for x in candidates if all(_is_descent(x, *update) for update in updates)), None)


def _is_descent(rate: float, before: np.ndarray, after: np.ndarray, gradient: np.ndarray) -> bool:
    """Check whether an update subtracts the rate times the gradient, except for rounding."""
    move = rate * gradient.astype(np.float64)
    rounding = np.finfo(after.dtype).eps * (np.abs(after) + np.abs(move))
    return bool((np.abs(before - move - after) <= rounding).all())
