"""Factories of PyTorch modules with classes of their own; own_keras.py has one of the same name for each."""

import torch
from torch import Tensor, nn

WIDTH = 8


class OwnCell(nn.Module):
    """A GRU or LSTM of two linear layers. gates: the gates in the order of their rows.

    The pass calls the layer of the state first if both layers have equal sizes.
    """

    def __init__(self, gates: str, inputs: int = WIDTH) -> None:
        super().__init__()
        self.gates, self.units = gates, 5
        self.of_token, self.of_state = nn.Linear(inputs, len(gates) * 5), nn.Linear(5, len(gates) * 5)

    def forward(self, x: Tensor) -> Tensor:
        state = memory = x.new_zeros(len(x), self.units)
        states = []
        for token in x.unbind(1):
            products = self.of_state(state).chunk(len(self.gates), 1), self.of_token(token).chunk(len(self.gates), 1)
            of_state, of_token = (dict(zip(self.gates, parts, strict=True)) for parts in products)
            if "f" in self.gates:
                i, f, o = (torch.sigmoid(of_token[gate] + of_state[gate]) for gate in "ifo")
                memory = f * memory + i * torch.tanh(of_token["g"] + of_state["g"])
                state = o * torch.tanh(memory)
            else:
                r, z = (torch.sigmoid(of_token[gate] + of_state[gate]) for gate in "rz")
                state = (1 - z) * torch.tanh(of_token["n"] + r * of_state["n"]) + z * state
            states.append(state)
        return torch.stack(states, 1)


class Recurrent(nn.Module):
    """A GRU whose states a linear layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(WIDTH, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0])


class LastState(nn.Module):
    """The last state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(x)[0]
        return states[:, -1]


class TransformedPoints(nn.Module):
    """Points that are multiplied by a matrix, which a linear layer computes, and a convolution of them."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.convolution = nn.Linear(WIDTH, WIDTH**2), nn.Conv1d(WIDTH, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        transformed = x @ self.matrix(x.amax(1)).view(-1, WIDTH, WIDTH)
        return self.convolution(transformed.transpose(1, 2)).amax(2)


class WeightNorm(nn.Module):
    """A linear layer of a square matrix, whose rows have learned lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.direction, self.length = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.direction / self.direction.norm(dim=1, keepdim=True)) * self.length


def own_cells(gates: str) -> nn.Module:
    return nn.Sequential(OwnCell(gates), OwnCell(gates, 5), nn.Linear(5, 2))


def own_keras_cell() -> nn.Module:
    return Recurrent()


def joined_cell() -> nn.Module:
    return LastState()


def transformed_points() -> nn.Module:
    return TransformedPoints()


def own_squares() -> nn.Module:
    return nn.Sequential(WeightNorm(), nn.ReLU(), WeightNorm())
