"""Gradients of the real update, which the optimizer's slots imply, and clipping as Keras's optimizers do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.recording.array_norms import iterate_blocks, sum_squared_differences, sum_squares
from common.recording.record_format import Environment
from tf_impl.record.optimizer_facts import Optimizer, read_config, unwrap_optimizer
from tf_impl.record.tensors import list_step_results, to_array, view_array

Gradients = Mapping[str, np.ndarray]
ROUNDING = 1e-4  # relative difference up to which two ways to clip count as equal
# Optimizers whose momentums are averages of gradients, with the hyperparameter of the average
AVERAGES = {"Adam": "beta_1", "AdamW": "beta_1", "Nadam": "beta_1", "Adamax": "beta_1", "Lamb": "beta_1"} | {
    "Lion": "beta_2"
}


def recover_gradients(optimizer: Optimizer, before: Gradients, after: Gradients, rate: float) -> dict[str, np.ndarray]:
    """Solve `after = decay * before + share * gradient` for the clipped gradients of an update.

    Return an empty dictionary if the optimizer's momentums do not follow this equation.

    Args:
        optimizer: The optimizer.
        before: Copies of the momentums before the update, which the gradients overwrite; empty before the first.
        after: The momentums after the update.
        rate: The learning rate of the update. SGD's share is -rate.
    """
    solve = _find_equation(unwrap_optimizer(optimizer), rate)
    if solve is None:
        return {}
    decay, share = solve
    gradients = {}
    for name, array in after.items():
        gradient = gradients[name] = before[name] if name in before else np.zeros(array.shape, array.dtype)
        for new, old in iterate_blocks(array, gradient):  # new arrays would take more time and memory than the sums
            old[...] = (new.astype(np.float64) - decay * old.astype(np.float64)) / share
    return gradients


def clip_gradients(optimizer: Optimizer, gradients: Gradients) -> dict[str, np.ndarray]:
    """Clip gradients as the optimizer's arguments say."""
    inner = unwrap_optimizer(optimizer)
    if getattr(inner, "clipnorm", None) is not None:
        return {name: _clip(array, inner.clipnorm, norm_of({name: array})) for name, array in gradients.items()}
    if getattr(inner, "global_clipnorm", None) is not None:
        norm = norm_of(gradients)
        return {name: _clip(array, inner.global_clipnorm, norm) for name, array in gradients.items()}
    if getattr(inner, "clipvalue", None) is not None:
        return {name: np.clip(array, -inner.clipvalue, inner.clipvalue) for name, array in gradients.items()}
    return dict(gradients)


def clip_rows(optimizer: Optimizer, gradients: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return gradients as Keras clips them before it adds the repeated rows of sparse ones.

    Gradients are left out if their sums of rows, clipped, are the same. All are if the optimizer does not clip so.

    Args:
        optimizer: The optimizer.
        gradients: The gradients by name. The indices of sparse ones may occur several times.
    """
    inner = unwrap_optimizer(optimizer)
    sparse = {name: gradient for name, gradient in gradients.items() if isinstance(gradient, tf.IndexedSlices)}
    if not sparse or not has_clipping(optimizer) or not hasattr(inner, "_clip_gradients"):
        return {}
    if getattr(inner, "global_clipnorm", None) is None:
        gradients = sparse
    sums = clip_gradients(optimizer, {name: view_array(gradient) for name, gradient in gradients.items()})
    arrays = map(view_array, inner._clip_gradients([*gradients.values()]))
    clipped = dict(zip(gradients, arrays))  # noqa: B905
    return {name: x for name, x in clipped.items() if relative_difference({"": x}, {"": sums[name]}) >= ROUNDING}


def has_clipping(optimizer: Optimizer) -> bool:
    """Check whether arguments of the optimizer ask for clipping."""
    inner = unwrap_optimizer(optimizer)
    return any(getattr(inner, name, None) is not None for name in ("clipnorm", "global_clipnorm", "clipvalue"))


def norm_of(gradients: Gradients) -> float:
    """Return the norm of all gradients as one vector."""
    return float(np.sqrt(sum(map(sum_squares, gradients.values()))))


def relative_difference(gradients: Gradients, reference: Gradients) -> float:
    """Return |gradients - reference| / |reference|, over the variables that both have."""
    names = [name for name in reference if name in gradients]
    squares = sum(sum_squared_differences(gradients[name], reference[name]) for name in names)
    if not squares:
        return 0.0
    return float(np.sqrt(squares)) / (norm_of({name: reference[name] for name in names}) or 1.0)


def _find_equation(optimizer: Any, rate: float) -> tuple[float, float] | None:  # noqa: ANN401  any optimizer
    """Return (decay, share) of `after = decay * before + share * gradient`; None for an optimizer without it."""
    kinds = [kind.__name__ for kind in type(optimizer).__mro__]
    average = next((AVERAGES[kind] for kind in kinds if kind in AVERAGES), None)
    if average is not None:
        decay = float(_read(optimizer, average))
        return decay, 1 - decay
    if "SGD" in kinds and float(_read(optimizer, "momentum") or 0.0) > 0 and rate > 0:
        return float(_read(optimizer, "momentum")), -rate
    return None


def _read(optimizer: Any, name: str) -> Any:  # noqa: ANN401  a number or a variable
    return read_config(optimizer)[name] if hasattr(optimizer, "get_config") else getattr(optimizer, name)


def _clip(array: np.ndarray, limit: float, norm: float) -> np.ndarray:
    return array * np.asarray(min(1.0, limit / norm) if norm else 1.0, array.dtype)


def compare_results(rehearsed: object, result: object) -> float:
    """Return the relative difference between what a rehearsed step and the real one returned; 0 if it is unknown."""
    if not isinstance(rehearsed, list):
        return 0.0
    expected = {str(index): to_array(tensor) for index, tensor in enumerate(list_step_results(result))}
    computed = {str(index): array for index, array in enumerate(rehearsed)}
    if expected.keys() != computed.keys() or any(expected[key].shape != computed[key].shape for key in expected):
        return 0.0
    return relative_difference(computed, expected)


def get_tolerance(environment: Environment) -> float:
    """Return the relative difference up to which the results of eager and compiled kernels count as equal."""
    return 0.1 if environment["flags"].get("autocast") is not None else 1e-3


def add_gradients(gradients: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the sum of gradients by name."""
    total: dict[str, np.ndarray] = {}
    for arrays in gradients:
        for name, array in arrays.items():
            total[name] = total[name] + array if name in total else array
    return total
