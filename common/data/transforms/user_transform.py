"""A function of the user as a transform."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from common.config.import_object import import_function
from common.data.transforms.transform import KEY, Example
from common.errors import UserError, describe_error


@dataclass(frozen=True)
class UserTransform:
    """The function `name`, as module:function. It gets an example, a generator and the arguments of the config."""

    training_only: ClassVar[bool] = True  # it may be random

    name: str
    function: Callable[..., Example]
    arguments: Mapping[str, Any]

    def bind(self, example: Example) -> Self:
        """Return the transform itself: only a call of the function shows whether the function fits the examples."""
        return self

    def __call__(self, example: Example, generator: np.random.Generator) -> Example:
        """Return the result of the function. Raise UserError if the function fails or returns other names."""
        names = example.keys()
        try:
            result = self.function({**example}, generator, **self.arguments)
        except Exception as error:
            raise UserError(f"{KEY}: {self.name} raises {describe_error(error)}") from error
        if not isinstance(result, Mapping) or result.keys() != names:
            returned = ", ".join(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
            raise UserError(f"{KEY}: {self.name} returns {returned}; return a dict with {', '.join(names)}")
        return {name: np.asarray(array) for name, array in result.items()}


def import_transform(name: str, arguments: Mapping[str, Any]) -> UserTransform:
    """Return a function as a transform. Raise UserError if it cannot be imported."""
    return UserTransform(name, import_function(KEY, name), arguments)
