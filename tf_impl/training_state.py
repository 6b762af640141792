"""The state that a strategy saves in checkpoints: the weights of the model and the slots of the optimizer."""

import keras

from common.training.state import SavedState, State
from tf_impl.models.weights import load_weights, read_weights
from tf_impl.optimizer import Optimizer
from tf_impl.step import seed_dropout


def collect_state(model: keras.Model, optimizer: Optimizer) -> State:
    """Return the weights of the model and the slots of the optimizer."""
    return State(read_weights(model), optimizer.slots())


def load_state(model: keras.Model, optimizer: Optimizer, checkpoint: SavedState) -> None:
    """Load the weights and the slots of a checkpoint. Call it in the scope of the TensorFlow strategy."""
    state = checkpoint.load()
    load_weights(model, state.weights)
    optimizer.load(state.slots, checkpoint.position)
    seed_dropout(model, checkpoint.position.plan_position + 1)
