"""Hooks before and after the steps of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class UpdateHooks:
    """Hooks that can be removed while PyTorch calls them.

    PyTorch iterates over the hooks without copying them, so only the last one can be removed during the iteration:
    each step moves `after` to the end. If it is not the last one, because another recorder has the same optimizer, it
    is removed after a later step. The hook of all optimizers runs after the hooks of one optimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        before: Callable[[tuple[Any, ...], dict[str, Any]], Arguments | None],
        after: Callable[[], object],
        after_others: Callable[[torch.optim.Optimizer], None],
    ) -> None:
        """Register the hooks.

        Args:
            optimizer: The optimizer.
            before: Receives the positional and the keyword arguments of the step. Returns None or their replacement.
            after: Called after the step.
            after_others: Called after a step of any optimizer, including this optimizer, with the optimizer that
                stepped.
        """
        self._before, self._after = before, after
        self._is_before, self._is_removed = False, False
        self._iterated: Mapping[int, object] = {}  # the hooks that PyTorch calls now after the step
        self._pre_handle = optimizer.register_step_pre_hook(self._run_before)
        self._post_handle = optimizer.register_step_post_hook(self._run_after)
        self._handle_of_others = register_optimizer_step_post_hook(lambda other, *_: after_others(other))

    def remove(self) -> None:
        """Remove the hooks, at the latest after the current step if no other recorder has the optimizer."""
        self._is_removed = True
        self._handle_of_others.remove()
        if not self._is_before:
            self._pre_handle.remove()
            if not self._iterated or next(reversed(self._iterated)) == self._post_handle.id:
                self._post_handle.remove()

    def _run_before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:  # noqa: ANN401
        optimizer._optimizer_step_post_hooks.move_to_end(self._post_handle.id)
        self._is_before = True
        try:
            return self._before(args, kwargs)
        finally:
            self._is_before = False

    def _run_after(self, optimizer: Any, *_: object) -> None:  # noqa: ANN401
        self._iterated = optimizer._optimizer_step_post_hooks
        try:
            if self._is_removed:
                self.remove()
            else:
                self._after()
        finally:
            self._iterated = {}
