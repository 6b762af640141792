"""A followed record: another script starts from its weights and trains on its batches."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from common.diagnose.recorded.followed_layers import FollowedLayers
from common.diagnose.recorded.passive_copies import list_passive_copies
from common.diagnose.recorded.recorded_model import RecordedModel
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.variable_pairs import ModelPairs, pair_recorded_models
from common.errors import UserError
from common.recording.record_reader import open_record

Arrays = dict[str, np.ndarray]


class FollowedRecord:
    """A record whose initial weights a script takes.

    Attributes:
        side: The record as side "a" of a diagnosis.
        needs_layers: Whether variables are paired by their layers, because the script uses the other framework.
        identity: Hash of the record's first step. The record of a following script stores this hash.
        layers: The layers of the record; None before `compute_weights`.
    """

    def __init__(self, directory: str, is_torch: bool, map_file: str | None) -> None:
        """Open the record. Raise UserError if the record is damaged or cannot be followed.

        Args:
            directory: The directory of the record.
            is_torch: Whether the script that follows uses PyTorch.
            map_file: The file that pairs the variables of the two models, if names and layers do not.
        """
        self.side = RecordedSide("a", open_record(Path(directory)))
        self.needs_layers = self.side.model.is_torch != is_torch
        self.identity = self.side.record.ranks[0].hash_first_step()
        self.layers: FollowedLayers | None = None
        self._map_file = None if map_file is None else Path(map_file)
        self._sources: dict[str, tuple[str, ...]] = {}  # the record's variables by that of the script that took them

    def _warn_unpaired(self, names: Sequence[str], own_names: Sequence[str]) -> None:
        """Warn about variables of the record and of the script without counterparts, if both have some."""
        names = [name for name in names if self.side.model.facts["variables"][name]["trainable"]]
        if names and own_names:
            listed = [f"{x[0]} and {len(x) - 1} others" if len(x) > 1 else x[0] for x in (own_names, names)]
            sentence = f"{listed[0]} of this model and {listed[1]} of {self.side.record.directory} have no counterpart"
            warnings.warn(
                f"follow: {sentence}, and keep their values; pair them by map=FILE", RuntimeWarning, stacklevel=2
            )

    def compute_weights(self, model: RecordedModel, weights: Mapping[str, np.ndarray]) -> Arrays:
        """Return the record's initial weights, by the name of the script's variable and in its layout.

        A variable without a counterpart keeps its own values. A diagnosis names it if the loss depends on it. A warning
        names those that both models have, because they may be counterparts.

        Args:
            model: The script's model.
            weights: Its weights.

        Raises:
            UserError: No trained variable has a counterpart, or one has another shape or is not recorded whole.
        """
        directory = self.side.record.directory
        start = self.side.read_weights(0)
        pairs = pair_recorded_models(self.side.model, model, self._map_file)
        self._check_flattened(model, pairs)
        self.layers = FollowedLayers(self.side, pairs.layers)
        self._sources = _list_sources(pairs)
        trained = {name for name, facts in model.facts["variables"].items() if facts["trainable"]}
        if trained and trained <= set(pairs.unpaired_b):
            raise UserError(
                f"{directory}: has no counterpart of any trained variable, such as {min(trained)}; build the same "
                "model, or pair the variables by map=FILE"
            )
        self._warn_unpaired(pairs.unpaired_a, [name for name in pairs.unpaired_b if name in trained])
        followed = {name: array.copy() for name, array in weights.items()}
        for match in pairs.variables:
            array = match.read_a(start)
            if array is None:
                raise UserError(f"{directory}: has no whole array of {match.title}; record it with a larger max_bytes=")
            shapes = {name: followed[name].shape for name in match.names_b}
            match.write_b(array, followed)
            for name, shape in shapes.items():
                if followed[name].shape != shape:
                    raise UserError(
                        f"{name}: has the shape {list(shape)}, and {[*followed[name].shape]} in {directory}; build the "
                        "same model, or pair the variables by map=FILE"
                    )
        paired = {name for match in pairs.variables for name in match.names_b}
        for name, copied in list_passive_copies(model).items():
            if name not in paired and np.array_equal(weights[name], weights[copied]):
                followed[name] = followed[copied]
        return followed

    def _check_flattened(self, model: RecordedModel, pairs: ModelPairs) -> None:
        """Raise UserError if a model of PyTorch does not show in which order it flattens the features of images."""
        models = self.side.model, model
        torch, keras = (next((x for x in models if x.is_torch is is_torch), None) for is_torch in (True, False))
        if torch is None or keras is None or any({"source", "sources"} & x.keys() for x in torch.facts["layers"]):
            return
        has_images = any("Conv" in layer["kind"] for layer in torch.facts["layers"])
        shapes = {layer["path"]: layer["unflattened_shape"] or [] for layer in keras.facts["layers"]}
        for match in pairs.layers if has_images else ():
            if len(shapes.get(match.path_a if torch is model else match.path_b, [])) > 1:
                raise UserError(
                    f"{self.side.record.directory}: {match.title} receives flattened features, and a compiled model "
                    "does not show their order; call the model without torch.compile while you record"
                )

    def check_order(self, model: RecordedModel) -> None:
        """Raise UserError if the layers, in the order in which the script called them, should have got other weights.

        Args:
            model: The script's model after a whole step.
        """
        sources = _list_sources(pair_recorded_models(self.side.model, model, self._map_file))
        called = {name for layer in model.facts["layers"] for name in layer["variables"].values()}
        known = [name for name in sources if name in called and name in self._sources]
        if moved := [name for name in known if sources[name] != self._sources[name]]:
            raise UserError(
                f"{self.side.record.directory}: the script calls its layers in another order than it defines them, so "
                f"that {len(moved)} variables, such as {moved[0]}, got the weights of others; call the model itself, "
                "or pair the variables by map=FILE"
            )


def _list_sources(pairs: ModelPairs) -> dict[str, tuple[str, ...]]:
    return {name: match.names_a for match in pairs.variables for name in match.names_b}
