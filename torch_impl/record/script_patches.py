"""The functions of PyTorch that report to a recorder what a script does between the forward pass and the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from torch_impl.record.patches import (
    FUNCTIONS,
    OPERATIONS,
    Patches,
    bind_arguments,
    find_scaler_class,
    list_loss_functions,
    list_module_values,
    list_scheduler_classes,
)
from torch_impl.record.step_observer import StepObserver


class ScriptPatches:
    """Functions of PyTorch that report to an observer while they are replaced."""

    def __init__(
        self,
        observer: StepObserver,
        after_scaler_step: Callable[[object], None],
        before_clearing: Callable[[], None],
        guard: Callable[[Callable[..., object]], Callable[..., Any]],
    ) -> None:
        """Replace the functions.

        Args:
            observer: Receives what the script does.
            after_scaler_step: Receives the optimizer that a gradient scaler stepped, or whose step it skipped.
            before_clearing: Called before a module sets its gradients to zero.
            guard: Returns a function that cannot raise errors.
        """
        self._patches, self._observer, self._report_scaler_step = Patches(), observer, after_scaler_step
        self._guard, self._compiler, self._report_clearing = guard, Patches(), before_clearing
        self._backward_depth = 0  # checkpointed layers compute backward passes within a backward pass
        self._script_depth = 0  # torch.jit.script calls itself for the functions that a function calls
        functions = [torch.jit.script, torch.nn.utils.clip_grad_norm_, *list_loss_functions()]
        places = list_module_values(set(map(id, functions)))
        self._compiler.observe_everywhere({torch.jit.script: (self._before_script, self._after_script)}, places)
        self._replace(places)

    def restore(self) -> None:
        """Restore the functions."""
        self._patches.restore(self._compiler)

    def _replace(self, places: Sequence[tuple[Any, str, Any]] | None = None) -> None:
        """Replace the functions. places: those of loss functions and of clipping, if they are known."""
        guard, observer = self._guard, self._observer
        observe = self._patches.observe
        self._patches.observe_everywhere(
            {
                **{function: (None, guard(observer.on_loss)) for function in list_loss_functions()},
                torch.nn.utils.clip_grad_norm_: (guard(self._before_clip), guard(self._on_clip)),
            },
            places,
        )
        suspend, resume = guard(self._suspend_operations), guard(self._resume_operations)
        self._patches.observe_operation(torch.Tensor, "backward", suspend, resume)
        observe(torch.autograd, "backward", guard(self._before_backward), guard(self._after_backward))
        observe(torch.autograd, "grad", None, guard(self._after_grad))
        observe(torch.nn.Module, "zero_grad", guard(self._before_clearing))
        observe(find_scaler_class(), "scale", None, guard(self._on_scale))
        observe(find_scaler_class(), "step", None, guard(self._after_scaler_step))
        for owner, names in ((torch.Tensor, OPERATIONS), (torch, FUNCTIONS)):
            for name in names:
                self._patches.observe_operation(owner, name, None, guard(observer.on_operation))
        observe(_BaseDataLoaderIter, "__next__", None, guard(self._take_batch))
        for kind in list_scheduler_classes():
            observe(kind, "step", guard(self._on_scheduler_step))

    def _take_batch(self, _: object, batch: object, *__: object) -> None:
        self._observer.loaders.take(batch)

    def _before_script(self, *_: object, **__: object) -> None:
        """Restore the functions while TorchScript compiles a function that calls them: it knows the originals only."""
        self._script_depth += 1
        if self._script_depth == 1:
            self._patches.restore()

    def _after_script(self, *_: object) -> None:
        self._script_depth -= 1
        if self._script_depth == 0:
            self._replace()

    def _suspend_operations(self, *_: object, **__: object) -> None:
        """Take the mode away before PyTorch calls it for a backward pass: it could not be removed in that call."""
        self._observer.operations.remove()

    def _resume_operations(self, *_: object) -> None:
        self._observer.operations.install()

    def _before_backward(self, tensors: object, *_: object, **__: object) -> None:
        self._backward_depth += 1
        if self._backward_depth == 1:
            self._suspend_operations()
            self._observer.before_backward(tensors)

    def _after_backward(self, *_: object) -> None:
        self._backward_depth -= 1
        if self._backward_depth == 0:
            self._observer.after_backward()
            self._resume_operations()

    def _after_grad(self, function: Callable[..., object], result: object, args: tuple[Any, ...], kwargs: Any) -> None:  # noqa: ANN401
        self._observer.after_grad(bind_arguments(function, args, kwargs)["outputs"], result)

    def _before_clip(self, parameters: object, *_: object, **__: object) -> None:
        self._observer.before_clip(list_clipped(parameters))

    def _on_clip(self, function: Callable[..., object], _: object, args: tuple[Any, ...], kwargs: Any) -> None:  # noqa: ANN401
        self._observer.on_clip(float(bind_arguments(function, args, kwargs)["max_norm"]))

    def _before_clearing(self, *_: object, **__: object) -> None:
        self._report_clearing()

    def _on_scale(self, function: Callable[..., object], _: object, args: tuple[Any, ...], kwargs: Any) -> None:  # noqa: ANN401
        arguments = bind_arguments(function, args, kwargs)
        self._observer.on_scaled_loss(arguments["self"], arguments["outputs"])

    def _after_scaler_step(
        self, function: Callable[..., object], _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._report_scaler_step(bind_arguments(function, args, kwargs)["optimizer"])

    def _on_scheduler_step(self, scheduler: object, *_: object, **__: object) -> None:
        self._observer.on_scheduler_step(scheduler)


def list_clipped(parameters: object) -> list[torch.Tensor] | None:
    """Return the parameters whose gradients a script clips, or None if they are not known.

    A generator such as `model.parameters()` can be read only once: its module has the parameters, too.
    """
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    if isinstance(parameters, (list, tuple, set)):
        return [*parameters]
    frame = getattr(parameters, "gi_frame", None)
    module = None if frame is None else frame.f_locals.get("self")
    return [*module.parameters()] if isinstance(module, torch.nn.Module) else None
