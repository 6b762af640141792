"""Operations of small computations, as a recorder describes them."""

from collections.abc import Callable, Sequence

from common.recording.operation_format import OperationTrace
from common.recording.operation_observer import OperationObserver
from tests.unit.common.recording.tensors import Tensor, measure, to_tensor


class Script:
    """A script whose operations are observed."""

    def __init__(self, **inputs: object) -> None:
        self.observer = OperationObserver(measure, [__name__])
        self.tensors: list[Tensor] = []  # keeps them alive
        self.inputs = {name: self.name(f"batch/0/input/{name}", to_tensor(x)) for name, x in inputs.items()}

    def name(self, name: str, tensor: Tensor) -> Tensor:
        self.tensors.append(tensor)
        self.observer.name_tensor(name, tensor)
        return tensor

    def call(self, name: str, function: Callable[..., object], *tensors: Tensor, **arguments: object) -> Tensor:
        return self.call_all(name, lambda *x, **y: [function(*x, **y)], *tensors, **arguments)[0]

    def call_all(
        self, name: str, function: Callable[..., Sequence[object]], *tensors: Tensor, **arguments: object
    ) -> list[Tensor]:
        """Call a function that returns several tensors."""
        results = [*map(to_tensor, function(*tensors, **arguments))]
        self.tensors += [*tensors, *results]
        self.observer.add(name, arguments, tensors, results, "")
        return results

    def finish(self, loss: Tensor) -> OperationTrace:
        return self.observer.finish(loss)
