"""The protocol of the parameter server: its messages and their encoding.

| sender       | receiver    | message                                       | answer                              |
| ------------ | ----------- | --------------------------------------------- | ----------------------------------- |
| worker       | coordinator | WorkerJoined, after it connects               |                                     |
| coordinator  | worker      | ComputeGradient                               | WorkerResult                        |
| any process  | server      | ReadParameters                                | ParametersVersion, then parameters  |
| worker       | server      | ApplyGradient, then its gradient              | AppliedUpdate                       |
| coordinator  | server      | ReadSlots                                     | the values of each slot in turn     |
| coordinator  | server      | SetPlateauFactor                              | SetPlateauFactor                    |

A message consists of numbers. It travels as one float64 tensor: the index of its type in MESSAGE_TYPES, then its fields
in their order. float64 holds every integer up to 2**53 exactly. Parameters, gradients and slots travel as flat tensors
(see shards.py), whose length both ends know.
"""

import socket
from dataclasses import dataclass, fields
from typing import Self, TypeVar, get_type_hints

import torch

from torch_impl.communication.connection import receive_tensor, send_tensor


@dataclass(frozen=True)
class Message:
    """A message of the protocol. All fields are int or float."""

    @classmethod
    def from_numbers(cls, numbers: list[float]) -> Self:
        """Return the message that has these values in its fields."""
        types = get_type_hints(cls)
        return cls(*(types[field.name](number) for field, number in zip(fields(cls), numbers, strict=True)))

    def to_numbers(self) -> list[float]:
        """Return the values of the fields in their order."""
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True)
class WorkerJoined(Message):
    """A worker has connected to the coordinator and waits for batches."""

    peak_memory_bytes: int  # peak memory of the worker's device


@dataclass(frozen=True)
class ComputeGradient(Message):
    """The coordinator asks a worker to compute a gradient and to have the servers apply it."""

    step: int  # number of the global batch in the plan
    part: int  # index of the part of that batch; in a synchronous run, the index of the worker


@dataclass(frozen=True)
class ReadParameters(Message):
    """A process asks a server for its parameters."""


@dataclass(frozen=True)
class ParametersVersion(Message):
    """The server's parameters follow this message."""

    version: int  # number of updates that the server has applied to them


@dataclass(frozen=True)
class ReadSlots(Message):
    """The coordinator asks a server for the optimizer slots of its parameters."""


@dataclass(frozen=True)
class SetPlateauFactor(Message):
    """The coordinator sends a server the factor of schedule=plateau for the learning rate of all later updates."""

    factor: float


@dataclass(frozen=True)
class ApplyGradient(Message):
    """A worker asks a server to apply a gradient, which follows this message."""

    step: int  # number of the global batch in the plan
    part: int  # index of the part of that batch
    loss: float
    grad_norm: float  # norm of the gradient of all parameters, not only of this server's parameters
    version_read: int  # number of updates that the server had applied to the parameters that the worker read
    worker: int  # index of the worker


@dataclass(frozen=True)
class AppliedUpdate(Message):
    """A server has applied the gradient of a part of a batch: now, or earlier if the worker has sent it again."""

    loss: float
    grad_norm: float
    staleness: int  # number of updates applied after the worker read the parameters and before this update
    worker: int  # index of the worker whose gradient was applied


@dataclass(frozen=True)
class WorkerResult(AppliedUpdate):
    """A worker reports to the coordinator the update that a server made from the worker's gradient."""

    peak_memory_bytes: int  # peak memory of the worker's device


# The order is part of the protocol: a message starts with the index of its type in this tuple.
MESSAGE_TYPES: tuple[type[Message], ...] = (
    WorkerJoined,
    ComputeGradient,
    ReadParameters,
    ParametersVersion,
    ReadSlots,
    SetPlateauFactor,
    ApplyGradient,
    AppliedUpdate,
    WorkerResult,
)

MessageT = TypeVar("MessageT", bound=Message)


def send_message(connection: socket.socket, message: Message) -> None:
    """Send a message. Raise OSError if the connection is broken."""
    numbers = [MESSAGE_TYPES.index(type(message)), *message.to_numbers()]
    send_tensor(connection, torch.tensor(numbers, dtype=torch.float64))


def receive_message(connection: socket.socket, *expected: type[MessageT]) -> MessageT:
    """Wait for a message of one of the expected types.

    Raises:
        OSError: the connection is broken.
        ConnectionError: the other end has sent something else.
    """
    (type_index,) = _receive_numbers(connection, 1)
    for message_type in expected:
        if MESSAGE_TYPES.index(message_type) == type_index:
            return message_type.from_numbers(_receive_numbers(connection, len(fields(message_type))))
    names = " or ".join(message_type.__name__ for message_type in expected)
    raise ConnectionError(f"expected {names}, received a message of type {type_index:g}")


def _receive_numbers(connection: socket.socket, count: int) -> list[float]:
    if count == 0:
        return []
    return receive_tensor(connection, torch.empty(count, dtype=torch.float64)).tolist()
