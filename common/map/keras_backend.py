"""The backend of Keras that the user has set in the environment, and the backends that the sides need."""

import os
from collections.abc import Mapping

from common.errors import UserError
from common.map.description import ModelDescription

VARIABLE = "KERAS_BACKEND"


def check_keras_backend(descriptions: Mapping[str, ModelDescription]) -> None:
    """Raise UserError if PyTorch's model is a Keras model and the user has set another backend than PyTorch's.

    Lockstep sets the backend of each process itself, but the user may believe that the configured backend is used.
    """
    backend = os.environ.get(VARIABLE, "torch")
    if backend != "torch" and any(description.is_keras for description in descriptions.values()):
        raise UserError(
            f"{VARIABLE}={backend}: model.torch returns a Keras model, which computes on the backend torch; unset "
            f"{VARIABLE}"
        )
