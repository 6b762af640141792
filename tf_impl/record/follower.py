"""Following: a script computes with the initial weights and the batches of another record.

This module may import all of Lockstep. Recording without following must not need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from common.diagnose.recorded.followed_batches import FollowedBatches
from common.diagnose.recorded.followed_record import FollowedRecord
from common.diagnose.recorded.recorded_model import RecordedModel
from common.errors import UserError
from common.map.description import RecordedCall
from common.recording.record_format import LayerFacts
from tf_impl.record.environment import find_rank
from tf_impl.record.iterators import split_by_replica
from tf_impl.record.model_copies import COPIES, find_copies
from tf_impl.record.model_facts import Layer, describe_model, name_variables
from tf_impl.record.tensors import is_storable, name_tensors, replace_tensors, to_array

NOT_LOADED = (
    "{}: the model has not taken its weights, because no recorded step called the model; call the model that the "
    "recorder has within recorder.step(), and not a copy of it"
)


class Follower:
    """Gives a script the initial weights and the batches of a record. Errors end the script before it trains.

    Attributes:
        identity: The description of the followed record, for the script's own record.
        is_waiting: Whether the model does not have the record's weights yet.
        strategy: The strategy of the model.
    """

    def __init__(self, directory: str, map_file: str | None) -> None:
        """Open the record that the script follows. Raise UserError if it is damaged.

        Args:
            directory: The directory of the record.
            map_file: The file that pairs the variables of the two models, if names and layers cannot.
        """
        self._record = FollowedRecord(str(directory), is_torch=False, map_file=map_file)
        self.identity = self._record.identity
        self._batches = FollowedBatches(self._record.side)
        self.is_waiting = True
        self._notes: list[str] = []
        self.strategy = tf.distribute.get_strategy()

    @property
    def notes(self) -> list[str]:
        """Return sentences that name what the script does not take from the record."""
        waiting = [NOT_LOADED.format(self._record.side.record.directory)] if self.is_waiting else []
        return [*self._batches.notes, *self._notes, *waiting]

    def declare_class_weights(self, weights: Mapping[int, float]) -> None:
        """Declare the weights of the script's labels, from which those of the recorded labels follow."""
        self._batches.class_weights = {float(label): float(weight) for label, weight in weights.items()}

    def check_weights(self) -> None:
        """Raise UserError if the model does not have the record's weights. Called before an update."""
        if self.is_waiting:
            raise UserError(NOT_LOADED.format(self._record.side.record.directory))

    def load_weights(self, model: Layer, layers: list[LayerFacts]) -> None:
        """Load the initial weights.

        Args:
            model: The model, which is built.
            layers: Its layers in the order in which a forward pass enters them.
        """
        variables = name_variables(model)
        arrays = {name: to_array(variable) for name, variable in variables.items()}
        followed = self._record.compute_weights(RecordedModel(False, describe_model(model, layers)), arrays)
        copies = find_copies(model)
        self._notes += [COPIES.format(len(copies))] if copies else []
        places = {id(variable): place for place, variable in enumerate(model.weights)}
        for name, array in followed.items():
            place = places[id(variables[name])]
            for variable in (variables[name], *(copy.weights[place] for copy in copies)):
                variable.assign(tf.cast(array, variable.dtype))
        self.is_waiting = False

    def convert_input(self, facts: LayerFacts, received: np.ndarray, returned: np.ndarray) -> np.ndarray | None:
        """Return the recorded input of a layer's counterpart, in the layout of the layer; None if it is not known.

        Args:
            facts: The description of the layer.
            received: What the layer received in the script.
            returned: What the layer returned.
        """
        if self._record.layers is None:
            return None
        call = RecordedCall(received, returned)
        array = self._record.layers.convert_input(facts["path"], call, facts["unflattened_shape"])
        return None if array is None else self._batches.restore_time_axis(array, received)

    def end_step(self) -> None:
        """Notice an update of the script."""
        self._batches.end_step()

    def replace_batch(self, batch: Any) -> Any:  # noqa: ANN401  as the script's data set returns it
        """Return the record's next micro-batch in the structure of the script's own batch.

        After the last recorded step, return the script's own batch. Each replica of this process gets its share.
        """
        if not any(isinstance(leaf, tf.distribute.DistributedValues) for leaf in tf.nest.flatten(batch)):
            return self._replace([batch])[0]
        parts = self._replace(split_by_replica(batch, self.strategy))

        def distribute(*leaves: tf.Tensor) -> object:
            return self.strategy.experimental_distribute_values_from_function(
                lambda context: leaves[context.replica_id_in_sync_group % len(leaves)]
            )

        return tf.nest.map_structure(distribute, *parts)

    def _replace(self, parts: list[Any]) -> list[Any]:
        """Return the record's next micro-batch, divided and structured like `parts`, the script's own micro-batch."""
        named = [name_tensors(part) for part in parts]
        for name, tensor in named[0].items():
            if not is_storable(tensor):
                raise UserError(f"{name}: is {tensor.dtype.name} in the script's batches, and only numbers can follow")
        leaves = {
            name: np.concatenate([to_array(part[name]) for part in named]) if tensor.shape.rank else to_array(tensor)
            for name, tensor in named[0].items()
        }
        arrays = self._batches.fill(leaves, *find_rank())
        if arrays is None:
            return parts
        shares = {
            name: np.array_split(array, len(parts)) if array.ndim else [array] * len(parts)
            for name, array in arrays.items()
        }
        return [
            replace_tensors(part, {name: tf.cast(shares[name][number], named[0][name].dtype) for name in arrays})
            for number, part in enumerate(parts)
        ]
