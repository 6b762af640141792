"""Keras's own optimizers, for `optimizer.semantics=native`."""

import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from common.config.layout_optimizers import MuonSettings
from common.config.optimizers import AdamSettings, RmspropSettings, SgdSettings
from common.config.schema import Config

CLASSES: dict[str, type[keras.Optimizer]] = {
    "adagrad": keras.optimizers.Adagrad,
    "adadelta": keras.optimizers.Adadelta,
    "adamax": keras.optimizers.Adamax,
    "nadam": keras.optimizers.Nadam,
    "adafactor": keras.optimizers.Adafactor,
}
SLOTS = {  # attributes of Keras's optimizers, by PyTorch's names of the slots
    "adagrad": {"sum": "_accumulators"},
    "adadelta": {"square_avg": "_accumulated_grads", "acc_delta": "_accumulated_delta_vars"},
    "adamax": {"exp_avg": "_m", "exp_inf": "_u"},
    "rmsprop": {"square_avg": "_velocities", "grad_avg": "_average_gradients", "momentum_buffer": "_momentums"},
    "sgd": {"momentum_buffer": "momentums"},
}
# The same for Adam, AdamW and NAdam: attributes of their Keras classes, by PyTorch's names of the slots.
MOMENTS = {"exp_avg": "_momentums", "exp_avg_sq": "_velocities", "max_exp_avg_sq": "_velocity_hats"}


def build_native(config: Config, model: keras.Model) -> keras.Optimizer:
    """Build Keras's optimizer with Keras's defaults for all values except those that choose an algorithm."""
    settings, rate = config.optimizer, 0.0  # `Optimizer.compute_scalars` sets the rate of each update
    match settings:
        case SgdSettings(momentum=momentum, nesterov=nesterov):
            optimizer = keras.optimizers.SGD(rate, momentum or 0.0, nesterov)
        case RmspropSettings(momentum=momentum, centered=centered):
            optimizer = keras.optimizers.RMSprop(rate, momentum=momentum or 0.0, centered=centered)
        case AdamSettings(kind=kind, amsgrad=amsgrad):
            build = keras.optimizers.AdamW if kind == "adamw" else keras.optimizers.Adam
            optimizer = build(rate, amsgrad=amsgrad)
        case MuonSettings(nesterov=nesterov):
            optimizer = keras.optimizers.Muon(rate, nesterov=nesterov, exclude_layers=_list_excluded(config, model))
        case _:
            optimizer = CLASSES[settings.kind](rate)
    optimizer.build(model.trainable_variables)
    return optimizer


def _list_excluded(config: Config, model: keras.Model) -> list[str]:
    """Return patterns of the paths of the matrices that AdamW updates, because `optimizer.adamw_match` says so."""
    return [
        f"^{re.escape(parameter.variable.path)}$"
        for parameter in model.named_parameters
        # (1, 1) is the shape of some matrix; only a matrix that Muon updates has a momentum_buffer
        if any("momentum_buffer" not in config.optimizer.list_slots(name, (1, 1)) for name in parameter.names)
    ]


def find_layout_slots(
    optimizer: keras.Optimizer, config: Config, model: keras.Model
) -> dict[tuple[str, str], tf.Variable]:
    """Return the slots of Keras's Adafactor or Muon, in Keras's layout, by the slot's name and the variable's path.

    For a matrix, Adafactor's `_v` is not a slot: each update recomputes it from `_r` and `_c`.
    """
    slots: dict[tuple[str, str], keras.Variable] = {}
    for index, variable in enumerate(model.trainable_variables):
        if config.optimizer.kind == "muon":
            momentum, velocity = optimizer.momentums[index], optimizer.adam_velocities[index]
            named = {"momentum_buffer": momentum} if velocity is None else {"exp_avg": momentum, "exp_avg_sq": velocity}
        elif len(variable.shape) < 2:
            named = {"variance": optimizer._v[index]}
        else:
            named = {"row_var": optimizer._r[index], "col_var": optimizer._c[index]}
        slots |= {(slot, variable.path): keras_slot.value for slot, keras_slot in named.items()}
    return slots


def find_native_slots(optimizer: keras.Optimizer, config: Config) -> list[Sequence[keras.Variable]]:
    """Return each slot of a Keras optimizer, in the order of `optimizer.slots`, with a variable for each parameter."""
    attributes = SLOTS.get(config.optimizer.kind, MOMENTS)
    return [getattr(optimizer, attributes[slot]) for slot in config.optimizer.slots]
