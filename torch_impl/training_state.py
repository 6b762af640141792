"""The state that a strategy saves in checkpoints: the weights of the model and the slots of the optimizer."""

from torch.nn import Module

from common.training.state import SavedState, State
from torch_impl.models.weights import load_weights, read_weights
from torch_impl.optimizer import Optimizer


def collect_state(model: Module, optimizer: Optimizer) -> State:
    """Return the weights of the model and the slots of the optimizer."""
    return State(read_weights(model), optimizer.slots())


def load_state(model: Module, optimizer: Optimizer, checkpoint: SavedState) -> None:
    """Load the weights and the slots of a checkpoint."""
    state = checkpoint.load()
    load_weights(model, state.weights)
    optimizer.load(state.slots, checkpoint.position)
