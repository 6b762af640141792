"""Functions of PyTorch that are replaced while a recorder records, and restored afterwards."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar

import torch

is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
LOSS_FUNCTIONS = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy", "ctc_loss",
    "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "poisson_nll_loss",
    "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
)  # fmt: skip
# Methods and functions by which a loss that a script writes itself combines labels with the outputs of a model
FUNCTIONS = (
    "div", "divide", "gather", "index_select", "mul", "multiply", "sub", "subtract", "take_along_dim", "true_divide",
    "where",
)  # fmt: skip
OPERATIONS = (
    "__mul__", "__rmul__", "__rsub__", "__rtruediv__", "__sub__", "__truediv__", *FUNCTIONS,
)  # fmt: skip
Before = Callable[..., object]  # receives the arguments of the observed function
After = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], object]  # function, result, args, kwargs


class ObservedMethod:
    """Replacement of a method that equals the original: tables of `__torch_function__` have the original as a key."""

    def __init__(self, owner: Any, name: str, replacement: Callable[..., object]) -> None:  # noqa: ANN401
        """Replace a method of a class, or a function of a module."""
        original = getattr(owner, name)
        functools.update_wrapper(self, original)  # copies the attributes of the replacement of another recorder, too
        self.original, self._replacement, self._path = original, replacement, (owner, name)

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., object]:
        """Return the method of an instance, or the function of the class."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the method of args[0]."""
        return self._replacement(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        """Check whether `other` is this replacement, the original, or another replacement of the original."""
        return other is self or bool(self.original == other)

    def __hash__(self) -> int:
        """Return the hash of the original."""
        return hash(self.original)

    def __reduce__(self) -> tuple[object, ...]:
        """Return the class and the name of the method for pickle."""
        return getattr, self._path


class ObservedFunction(ObservedMethod):
    """Replacement of a function of a module. As an attribute of a class, it is not bound to instances."""

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., object]:
        """Return the function."""
        return self


class Patches:
    """Replaced functions. Each calls the original function, between two functions of the recorder."""

    # By the identity of a replacement that was restored while another recorder had replaced it: it, and its original
    _retired: ClassVar[dict[int, tuple[object, Any]]] = {}

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, original and replacement

    def observe(self, owner: Any, name: str, before: Before | None = None, after: After | None = None) -> None:  # noqa: ANN401  module or class
        """Call functions before and after a method of a class or a function of a module.

        Args:
            owner: The class or module.
            name: The name of the function.
            before: Receives the arguments.
            after: Receives the function, its result, its positional and its keyword arguments. Called even if the
                function raises, with None as the result.
        """
        self.replace(owner, name, _surround(getattr(owner, name), before, after))

    def observe_operation(self, owner: Any, name: str, before: Before | None, after: After) -> None:  # noqa: ANN401
        """Call functions before and after one that a class with `__torch_function__` may handle in another way.

        Args:
            owner: The class or module.
            name: The name of the method or function.
            before: Receives the arguments.
            after: Receives the function, its result, its positional and its keyword arguments.
        """
        kind = ObservedMethod if inspect.isclass(owner) else ObservedFunction
        self.replace(owner, name, kind(owner, name, _surround(getattr(owner, name), before, after)))

    def observe_everywhere(
        self,
        observers: dict[Callable[..., object], tuple[Before | None, After]],
        places: Sequence[tuple[Any, str, Any]] | None = None,
    ) -> None:
        """Observe functions in every module that has them, also under `from x import f`.

        Args:
            observers: (before, after) for each observed function.
            places: Values of modules as `list_module_values` returns them, these functions among them, so that all
                modules are not searched again.
        """
        replacements = {id(function): _surround(function, *pair) for function, pair in observers.items()}
        for owner, name, function in list_module_values(replacements) if places is None else places:
            if id(function) in replacements:
                self.replace(owner, name, replacements[id(function)])

    def restore(self, *others: Patches) -> None:
        """Restore the functions. Those that another recorder replaced in the meantime are restored with its own.

        Args:
            others: Patches to restore as well. All modules are searched once for all of them.
        """
        originals: dict[int, object] = {}
        for patches in (self, *others):
            originals |= patches._restore_places()
        for owner, name, function in list_module_values(originals):  # modules imported while recording
            setattr(owner, name, originals[id(function)])
        for patches in (self, *others):
            patches._replaced.clear()

    def _restore_places(self) -> dict[int, object]:
        """Restore the functions at the places of their replacement. Return the originals by `id` of the replacement."""
        for owner, name, original, replacement in reversed(self._replaced):
            if vars(owner).get(name) is replacement:
                _restore(owner, name, self._find_original(original))
            else:
                self._retired[id(replacement)] = replacement, original
        return {id(replacement): original for _, _, original, replacement in self._replaced}

    def _find_original(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return the function that a recorder replaced first, if others that replaced it have ended before."""
        while id(function) in self._retired:
            function = self._retired[id(function)][1]
        return function

    def replace(self, owner: Any, name: str, replacement: Callable[..., object]) -> None:  # noqa: ANN401
        """Replace a method of a class or a function of a module."""
        self._replaced.append((owner, name, vars(owner).get(name, getattr(owner, name)), replacement))
        setattr(owner, name, replacement)


def _restore(owner: Any, name: str, original: object) -> None:  # noqa: ANN401  module or class
    bases = owner.__mro__[1:] if inspect.isclass(owner) else ()
    if any(vars(base).get(name) is original for base in bases):  # the class inherits it
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def list_module_values(identities: Collection[int]) -> list[tuple[Any, str, Any]]:
    """Return every module attribute whose `id` is one of `identities`, as (module, name, value)."""
    wanted = set(identities)
    return [
        (module, name, value)
        for module in list(sys.modules.values())
        # Most modules have none. To ask that without a loop in Python is faster: modules have 100,000 attributes.
        if not wanted.isdisjoint(map(id, list(getattr(module, "__dict__", {}).values())))
        for name, value in list(vars(module).items())
        if id(value) in wanted
    ]


def list_scheduler_classes() -> Iterator[type]:
    """Yield the classes of learning rate schedulers that define how a scheduler steps."""
    for kind in vars(torch.optim.lr_scheduler).values():
        if inspect.isclass(kind) and "step" in vars(kind) and kind.__module__ == "torch.optim.lr_scheduler":
            yield kind


def list_loss_functions() -> list[Callable[..., object]]:
    """Return PyTorch's loss functions."""
    functions = vars(torch.nn.functional)
    return [functions[name] for name in LOSS_FUNCTIONS if name in functions]


def find_scaler_class() -> type:
    """Return the class that scales gradients, by the version of PyTorch."""
    kind: type = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    return kind


def bind_arguments(function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by parameter, with defaults."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def find_observed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that recorders replaced by `function`; `function` itself if it is not a replacement."""
    while True:
        if isinstance(function, ObservedMethod):
            function = function.original
        elif getattr(function, "__code__", None) is REPLACEMENT_CODE:
            function = vars(function)["__wrapped__"]
        else:
            return function


def _surround(original: Callable[..., Any], before: Before | None, after: After | None) -> Callable[..., Any]:
    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  of any function
        if is_compiling():
            return original(*args, **kwargs)
        if before is not None:
            before(*args, **kwargs)
        result = None
        try:
            result = original(*args, **kwargs)
        finally:  # even if the function raises: the script may catch the error and continue
            if after is not None:
                after(original, result, args, kwargs)
        return result

    return replacement


REPLACEMENT_CODE = _surround(len, None, None).__code__  # which all replacements of functions share
