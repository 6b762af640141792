"""What a strategy has trained, to a checkpoint and from it."""

from torch.nn import Module

from common.training.state import Saved, State
from torch_impl.models.weights import load_weights, read_weights
from torch_impl.optimizer import Optimizer


def collect_state(model: Module, optimizer: Optimizer) -> State:
    """The parameters and the optimizer's slots."""
    return State(read_weights(model), optimizer.slots())


def load_state(model: Module, optimizer: Optimizer, checkpoint: Saved) -> None:
    """Set them to what a checkpoint holds."""
    state = checkpoint.load()
    load_weights(model, state.weights)
    optimizer.load(state.slots, checkpoint.position)
