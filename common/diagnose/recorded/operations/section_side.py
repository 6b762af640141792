"""One side of a differing section: the operations that lead to a tensor from tensors that both scripts have."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property

from common.diagnose.recorded.operations.operation_names import (
    ORDERING,
    is_selection,
    normalize_name,
)
from common.diagnose.recorded.operations.selections import Selection, find_selection
from common.recording.operation_format import Operation, OperationTrace, TensorStatistics

INPUT = "batch/0/input/"


class SectionSide:
    """One side of a differing section.

    Attributes:
        target: The number of the tensor that differs.
    """

    def __init__(self, trace: OperationTrace, target: int, matched: Collection[int]) -> None:
        """Prepare the side.

        Args:
            trace: The operations of the script.
            target: The number of the tensor that differs.
            matched: The numbers of the tensors that have an equal one on the other side.
        """
        self.target = target
        self._trace, self._matched = trace, frozenset(matched)
        self._producers = {
            output: index for index, operation in enumerate(trace["operations"]) for output in operation["outputs"]
        }

    def narrow(self, tensor: int) -> "SectionSide":
        """Return the part of the side that leads to a tensor."""
        return SectionSide(self._trace, tensor, self._matched)

    @cached_property
    def operations(self) -> list[Operation]:
        """The operations that lead to the target from tensors with an equal one on the other side, in their order.

        The list is empty if the target itself has an equal one there. Operations that only create zeros, for example,
        are left out: the other script may need none.
        """
        operations = self.list_leading_to(self.target) if self.target not in self._matched else []
        return [x for x in operations if x["inputs"] or not all(map(self.is_constant, x["outputs"]))]

    def is_constant(self, tensor: int) -> bool:
        """Check whether all numbers of a tensor are the same."""
        statistics = self._trace["tensors"][tensor]
        return statistics["minimum"] is not None and statistics["minimum"] == statistics["maximum"]

    def _find_producers(self, tensors: Sequence[int], known: Collection[int]) -> list[int]:
        """Return the indices of the operations that lead to tensors from known ones."""
        unvisited, indices = [*tensors], set()
        while unvisited:
            index = self._producers.get(unvisited.pop())
            if index is not None and index not in indices:
                indices.add(index)
                unvisited += [x for x in self._trace["operations"][index]["inputs"] if x not in known]
        return sorted(indices)

    def list_leading_to(self, tensor: int) -> list[Operation]:
        """Return the operations that lead to a tensor from tensors with an equal one on the other side."""
        return [self._trace["operations"][index] for index in self._find_producers([tensor], self._matched)]

    def list_sources(self, operations: Sequence[Operation], size: int) -> set[int]:
        """Return the tensors of a number of elements that operations receive and no operation computes."""
        received = {tensor for operation in operations for tensor in operation["inputs"]} - self._producers.keys()
        return {tensor for tensor in received if self.count_elements([tensor]) == [size]}

    def list_reorderings(self, operation: Operation) -> list[Operation]:
        """Return the operations before another one that only change the order of numbers, such as flips."""
        producers = [self._trace["operations"][index] for index in self._find_producers(operation["inputs"], ())]
        selections = [(x, self.find_selection(x)) for x in producers if is_selection(x)]
        return [x for x, selection in selections if selection is not None and selection.is_reordering]

    def list_layouts(self, tensors: Sequence[int]) -> list[Operation]:
        """Return the operations that gave tensors their shape and order, also before functions of one tensor."""
        unvisited, visited, indices = [*tensors], set(), set()
        while unvisited:
            index = self._producers.get(unvisited.pop())
            if index is None or index in visited:
                continue
            visited.add(index)
            operation = self._trace["operations"][index]
            if normalize_name(operation) in ORDERING:
                indices.add(index)
            if index in indices or len(self.list_tensors(operation)) == 1:
                unvisited += operation["inputs"]
        return [self._trace["operations"][index] for index in sorted(indices)]

    def find_producer(self, tensor: int) -> Operation | None:
        """Return the operation of the script that computes a tensor, also before the section; None if none does."""
        index = self._producers.get(tensor)
        return None if index is None else self._trace["operations"][index]

    @cached_property
    def first_operations(self) -> list[Operation]:
        """The operations that receive no result of another one of the section, except for constants such as zeros."""
        return [x for x in self.operations if all(map(self.is_source, x["inputs"]))]

    @cached_property
    def entering_operations(self) -> list[Operation]:
        """The operations that receive a tensor with an equal one on the other side."""
        return [x for x in self.operations if not self._matched.isdisjoint(self.list_tensors(x))]

    def is_matched(self, tensor: int) -> bool:
        """Check whether a tensor has an equal one on the other side."""
        return tensor in self._matched

    def is_weight(self, tensor: int) -> bool:
        """Check whether a tensor is a weight of the model."""
        return tensor in self._weights

    def is_source(self, tensor: int) -> bool:
        """Check whether a tensor has an equal one on the other side, or is computed from no tensor."""
        index = self._producers.get(tensor)
        return tensor in self._matched or index is None or not self._trace["operations"][index]["inputs"]

    def count_names(self) -> Counter[str]:
        """Count the operations of each name, in one spelling."""
        checks = {output for x in self.operations if x["name"] == "IsFinite" for output in x["outputs"]}
        # tf.reduce_logsumexp replaces maxima that are not finite. Other scripts call one function for all of it.
        return Counter(normalize_name(x) for x in self.operations if checks.isdisjoint(x["inputs"]))

    def list_users(self, tensors: Collection[int]) -> list[Operation]:
        """Return the operations of the section that receive one of several tensors."""
        return [x for x in self.operations if not {*tensors}.isdisjoint(x["inputs"])]

    @cached_property
    def first_losses(self) -> list[Operation]:
        """The loss functions that receive no floating-point result of another operation of the section.

        The form of their labels and lengths, which are integers, is another one in each framework.
        """
        return [
            operation
            for operation in self.operations
            if normalize_name(operation).endswith("loss") and all(map(self.is_source, self.list_floats(operation)))
        ]

    def list_floats(self, operation: Operation, is_nonzero: bool = False) -> list[int]:
        """Return the floating-point inputs of an operation that are no numbers of the code.

        Args:
            operation: The operation.
            is_nonzero: Whether to leave out tensors of zeros.
        """
        floats = [x for x in self.list_tensors(operation) if "float" in self._trace["tensors"][x]["dtype"]]
        return [x for x in floats if not is_nonzero or self._trace["tensors"][x]["norm"] != 0]

    def list_unrecorded(self, operation: Operation) -> list[int]:
        """Return floating-point inputs without name, operation and equal one, such as the weights of another model."""
        known = self._producers.keys() | self._named | {*self._matched}
        return [x for x in self.list_floats(operation) if x not in known]

    def get_statistics(self, tensor: int) -> TensorStatistics:
        """Return shape, type and statistics of a tensor."""
        return self._trace["tensors"][tensor]

    def list_indices(self, operation: Operation) -> list[int]:
        """Return the inputs of an operation that are integers, but no numbers of the code."""
        return [x for x in self.list_tensors(operation) if "int" in self._trace["tensors"][x]["dtype"]]

    @cached_property
    def received(self) -> set[int]:
        """The tensors that the operations receive."""
        return {tensor for operation in self.operations for tensor in operation["inputs"]}

    def may_receive_labels(self, count: int) -> bool:
        """Check whether functions outside of layers receive an array without a name, as large as one of labels.

        Layers receive such arrays, too: moving statistics that an earlier call has changed. Without any operation, it
        is not known what the target was computed from.

        Args:
            count: The number of examples.
        """
        functions = [x for x in self.operations if not x["layer"] and not self.find_layer(x)]
        sources = {x for operation in functions for x in operation["inputs"]} - self._producers.keys() - self._named
        sizes = [math.prod(self._trace["tensors"][x]["shape"]) for x in sources]
        return not self.operations or any(size >= count and size % count == 0 for size in sizes)

    def list_received_results(self) -> list[Operation]:
        """Return the operations before the section whose results it receives."""
        indices = {self._producers[x] for x in self.received & self._matched & self._producers.keys()}
        return [self._trace["operations"][index] for index in sorted(indices)]

    @property
    def received_inputs(self) -> dict[str, int]:
        """The inputs of the model that the operations receive: the number of each tensor by its name."""
        names = self._trace["names"].items()
        return {
            name.removeprefix(INPUT): number
            for name, number in names
            if name.startswith(INPUT) and number in self.received
        }

    @property
    def has_equal_model_inputs(self) -> bool:
        """Return whether each input of the model has an equal tensor on the other side.

        Another input may be one of the other side's in another form, such as a mask that the script has inverted.
        """
        return all(x in self._matched for name, x in self._trace["names"].items() if name.startswith(INPUT))

    @property
    def all_names(self) -> set[str]:
        """The names of all operations of the script, in one spelling."""
        return {normalize_name(operation) for operation in self._trace["operations"]}

    @property
    def used_tensors(self) -> set[int]:
        """The tensors that any operation of the script receives."""
        return {tensor for operation in self._trace["operations"] for tensor in operation["inputs"]}

    @cached_property
    def _weights(self) -> frozenset[int]:
        return frozenset(number for name, number in self._trace["names"].items() if name.startswith("weight/"))

    @cached_property
    def computed_from_weights(self) -> frozenset[int]:
        """The weights of the model, and the tensors that are computed from them."""
        tensors = {*self._weights}
        for operation in self._trace["operations"]:
            if not tensors.isdisjoint(operation["inputs"]):
                tensors.update(operation["outputs"])
        return frozenset(tensors)

    def has_statistics(self, tensors: Sequence[int]) -> bool:
        """Check whether all of several tensors hold finite numbers, so that they can be compared."""
        return all(self._trace["tensors"][tensor]["norm"] is not None for tensor in tensors)

    def list_tensors(self, operation: Operation) -> list[int]:
        """Return the inputs of an operation that are no numbers of the code."""
        return [tensor for tensor in operation["inputs"] if not self._is_number(tensor)]

    def list_numbers(self, operation: Operation) -> list[float]:
        """Return the numbers of the code that an operation receives as tensors, such as 0.5 in `0.5 * x`."""
        values = [self._trace["tensors"][tensor]["sum"] for tensor in operation["inputs"] if self._is_number(tensor)]
        return [value for value in values if value is not None]

    def is_constant_of_code(self, tensor: int) -> bool:
        """Check whether a tensor without a name and an equal one depends on no other tensor."""
        producer = self.find_producer(tensor)
        return tensor not in self._matched | self._named and (producer is None or not producer["inputs"])

    def find_selection(self, operation: Operation) -> Selection | None:
        """Return the elements that an operation selects by its index; None if its arguments do not say it."""
        index = operation["arguments"].get("index")
        if not isinstance(index, str) or not operation["inputs"]:
            return None
        return find_selection(index, self._trace["tensors"][operation["inputs"][0]]["shape"])

    def find_layer(self, operation: Operation) -> str:
        """Return the path of the layer that an operation is; empty if it is a function."""
        return next((self._layers[output] for output in operation["outputs"] if output in self._layers), "")

    @cached_property
    def _layers(self) -> dict[int, str]:
        """The path of the layer that returned a tensor, by the tensor's number; of nested layers, the inner one."""
        return {
            number: name.removeprefix("layer/").removesuffix("/output")
            for name, number in reversed(self._trace["names"].items())
            if name.startswith("layer/") and name.endswith("/output")
        }

    def count_elements(self, tensors: Sequence[int]) -> list[int]:
        """Return the number of elements of each of several tensors."""
        return [math.prod(shape) for shape in self.list_shapes(tensors)]

    def list_shapes(self, tensors: Sequence[int]) -> list[list[int]]:
        """Return the shape of each of several tensors."""
        return [self._trace["tensors"][tensor]["shape"] for tensor in tensors]

    def count_averaged(self, operation: Operation) -> int:
        """Return the number of elements that a mean has in its input for each element of its result."""
        received, returned = self.count_elements([operation["inputs"][0], operation["outputs"][0]])
        return received // max(returned, 1)

    def _is_number(self, tensor: int) -> bool:
        is_single = math.prod(self._trace["tensors"][tensor]["shape"]) == 1
        return is_single and tensor not in self._producers and tensor not in self._named

    @cached_property
    def _named(self) -> frozenset[int]:
        """The tensors that have names, such as weights."""
        return frozenset(self._trace["names"].values())
