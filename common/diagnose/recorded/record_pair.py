"""The comparison of two records: what its stages share.

A is the reference record of a diagnosis, and B the record that is compared with it. A stage compares one part of their
training, such as the gradients. The noise of a tensor is the difference that rounding alone causes in the tensor. Noise
cannot be measured, because nothing is computed again. The estimate is the largest difference among the earlier tensors
that count as equal, since a tensor inherits the differences of earlier tensors, and at least one machine epsilon.
"""

import math
import re
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from common.diagnose.findings import EQUAL, NOT_COMPARED, Stage
from common.diagnose.recorded.random_layers import find_changing_layers, find_random_layers, have_same_draws
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.variable_match import VariableMatch
from common.diagnose.recorded.variable_pairs import ModelPairs, list_recorded_layouts, pair_recorded_models
from common.diagnose.rounding import MACHINE_EPSILON
from common.map.array_differences import relative_difference

Arrays = Mapping[str, np.ndarray]
PRECISION_FLAGS = ("autocast", "mixed_precision", "dtype_policy", "policy", "precision")
TF32_FLAGS = ("tf32", "tensor_float_32")
MASK_NOISE = 1e-3  # different dropout masks change a loss by more than this share of it
EQUAL_WEIGHTS = 1e-6  # largest relative difference of weights that differ only by rounding to float32
TF32_NOISE = 2e-5  # relative noise of TF32, which rounds to 11 bits; a check tolerates a hundred times its noise


def find_weight_precision(side: RecordedSide) -> str:
    """Return the lowest precision of a record's variables, or float32 if any of them has that precision."""
    model = side.record.facts["model"]
    dtypes = {facts["dtype"] for facts in model["variables"].values()} if model is not None else set()
    floats = {dtype for dtype in dtypes if "float" in dtype}
    if floats and floats <= {"float64", "float16", "bfloat16"}:
        return min(floats, key=("bfloat16", "float16", "float64").index)
    return "float32"


def find_declared_precision(side: RecordedSide) -> str:
    """Return the precision of matrix products that a record declares: float64, float32, tf32, float16 or bfloat16."""
    environment = side.record.facts["environment"]
    flags = {name: str(environment["flags"].get(name)).lower() for name in PRECISION_FLAGS}
    for narrow in ("bfloat16", "float16"):
        if any(narrow in value for value in flags.values()):
            return narrow
    if (precision := find_weight_precision(side)) != "float32":
        return precision
    is_gpu = environment["device"].lower() != "cpu"
    return "tf32" if is_gpu and any(environment["flags"].get(name) is True for name in TF32_FLAGS) else "float32"


class RecordPair:
    """Records A and B, and the stages that are finished so far.

    Attributes:
        a: Side A.
        b: Side B.
        steps: Numbers of the steps that both recorded.
        models: Pairs of variables and layers.
        stages: Finished stages.
        orders: By step, the index among A's examples of each example of B; only steps with the same examples.
        update_causes: Names of the causes found in the settings of optimizers, schedules and clipping. They explain no
            difference before the first update.
        compares_directions: Whether the stage "gradients" compares the received gradients, with the weight decay of the
            optimizers, because each script reaches them in its own way. The stage "hyperparameters" sets it.
        has_decays_as_penalties: Whether the regularizers of one script declare the weight decays of the other script's
            optimizer. The stage "hyperparameters" sets it.
        equal_tensors: Names in A and in B of tensors of layers that are equal, except perhaps for rows of padding.
        seen_noise: Largest difference so far that counts as equal, relative to the tensor's norm.
        changed_signs: Paths in A of layers that receive or return an equal tensor with numbers close to 0 whose signs
            differ. An activation such as ReLU has other gradients for them.
    """

    def __init__(self, a: RecordedSide, b: RecordedSide, map_file: Path | None = None) -> None:
        self.a, self.b = a, b
        self.steps = sorted({*a.record.steps} & {*b.record.steps})
        self.models = self._pair_models(map_file)
        self.stages: list[Stage] = []
        self.orders: dict[int, np.ndarray] = {}
        self.update_causes: frozenset[str] = frozenset()
        self.compares_directions, self.has_decays_as_penalties = False, False
        self.seen_noise = 0.0
        self.equal_tensors: list[tuple[str, str]] = []
        self.changed_signs: set[str] = set()
        self.measure_weight_difference = cache(self._measure_weight_difference)
        self.find_used = cache(self._find_used)

    def _pair_models(self, map_file: Path | None) -> ModelPairs:
        """Pair the models in the layout in which most initial weights are equal."""
        a, b = self.a.model, self.b.model
        candidates = [pair_recorded_models(a, b, map_file, layout) for layout in list_recorded_layouts(a, b)]
        return max(candidates, key=self._count_equal_weights) if len(candidates) > 1 else candidates[0]

    def _count_equal_weights(self, models: ModelPairs) -> int:
        """Count the pairs of variables that have equal values before the first step, up to float32's rounding."""
        arrays = [
            (match.read_a(self.a.read_weights(0)), match.read_b(self.b.read_weights(0))) for match in models.variables
        ]
        return sum(
            a is not None and b is not None and a.shape == b.shape and relative_difference(a, b) < EQUAL_WEIGHTS
            for a, b in arrays
        )

    @property
    def sides(self) -> tuple[RecordedSide, RecordedSide]:
        """Both sides."""
        return self.a, self.b

    @cached_property
    def precision(self) -> str:
        """Precision of the comparison: the finer of those that the records declare."""
        finest = min((find_declared_precision(side) for side in self.sides), key=_fineness)
        return {"tf32": "float32", "float16": "bfloat16"}.get(finest, finest)

    @cached_property
    def base_noise(self) -> float:
        """Smallest noise of a computed tensor: one machine epsilon, or TF32's rounding if both records declare it."""
        if all(find_declared_precision(side) == "tf32" for side in self.sides):
            return TF32_NOISE
        return MACHINE_EPSILON[self.precision]

    @property
    def noise(self) -> float:
        """Estimated noise of a tensor that is computed now."""
        return max(self.base_noise, self.seen_noise)

    def remember(self, difference: float) -> None:
        """Store a difference that counts as rounding. It adds noise to everything that is computed from the tensor."""
        self.seen_noise = max(self.seen_noise, difference)

    def get_stage(self, name: str) -> Stage:
        """Return the finished stage of this name."""
        return next(stage for stage in self.stages if stage.name == name)

    def has_difference(self, *names: str) -> bool:
        """Check whether one of the finished stages of these names differs, or inherits an earlier difference."""
        return any(stage.verdict not in (EQUAL, NOT_COMPARED) for stage in self.stages if stage.name in names)

    def find_first_difference(self, *names: str) -> float:
        """Return the first step in which one of the finished stages of these names differs; infinity if none does.

        It is 0 if the difference belongs to no single step.
        """
        stages = [stage for stage in self.stages if stage.name in names]
        tensors = [cause.tensor for stage in stages for cause in stage.causes if not stage.checks]
        tensors += [check.tensor for stage in stages for check in stage.checks if check.differs]
        matches = [re.search(r"\bstep (\d+)", tensor) for tensor in tensors]
        return min((int(match[1]) if match else 0 for match in matches), default=math.inf)

    def _measure_weight_difference(self, step: int) -> float:
        """Return the relative difference of all trained weights after a step, as one vector."""
        pairs = [
            (a, b)
            for match in self.list_trained()
            if (a := match.read_a(self.a.read_weights(step))) is not None
            and (b := match.read_b(self.b.read_weights(step))) is not None
            and a.shape == b.shape
        ]
        if not pairs:
            return 0.0
        a, b = (np.concatenate([np.ravel(arrays[side]).astype(np.float64) for arrays in pairs]) for side in (0, 1))
        return relative_difference(a, b)

    def _find_used(self, side: RecordedSide) -> set[str] | None:
        """Return a side's variables with a gradient other than 0 in any common step; None if none is recorded."""
        gradients = [side.gradients.read(step) for step in self.steps]
        if not any(gradients):
            return None
        return {name for arrays in gradients for name, array in arrays.items() if array.any()}

    def name_sampled(self, kind: str, *steps: int) -> str:
        """Return the title of a variable that may differ because a record has only a sample of it; empty if none may.

        Args:
            kind: "weight" or "gradient".
            steps: The steps; 0 for the weights before the first recorded one.
        """
        for step in steps:
            hashes_a, hashes_b = (_hash_samples(side, kind, step) for side in self.sides)
            for match in self.models.variables:
                is_sampled = hashes_a.keys() & set(match.names_a) or hashes_b.keys() & set(match.names_b)
                if is_sampled and not self._have_equal_hashes(match, hashes_a, hashes_b):
                    return match.title
        return ""

    def _have_equal_hashes(self, match: VariableMatch, a: Mapping[str, str], b: Mapping[str, str]) -> bool:
        """Check whether the same bytes are recorded on both sides. The frameworks have them in other orders."""
        names = list(zip(match.names_a, match.names_b, strict=False))
        return self.a.is_torch == self.b.is_torch and all(a.get(x) == b.get(y) is not None for x, y in names)

    def list_trained(self) -> list[VariableMatch]:
        """Return the pairs of variables that are trainable in A."""
        return [match for match in self.models.variables if self.a.trainable.issuperset(match.names_a)]

    @cached_property
    def has_followed(self) -> bool:
        """Return whether B's script followed A's record."""
        follows = self.b.record.facts.get("follows")
        return follows is not None and follows == self.a.record.ranks[0].hash_first_step()

    @property
    def equal_steps(self) -> list[int]:
        """The first steps, as long as both sides train on the same examples with the same dropout masks."""
        steps: list[int] = []
        for step in self.steps:
            if step not in self.orders or (steps and self._has_other_masks(step)):
                break
            steps.append(step)
        return steps

    @property
    def why_steps_differ(self) -> str:
        """Why no step has the same examples and the same initial weights; an empty string if one has both."""
        if not self.equal_steps:
            return self.get_stage("data").omission or "the examples differ"
        if self.has_difference("initial weights"):
            return "the initial weights differ"
        return self.get_stage("initial weights").omission

    @cached_property
    def changing_layers(self) -> list[list[str]]:
        """The paths of the layers of A and of B whose random numbers change their input in the first step."""
        return [find_changing_layers(side) for side in self.sides]

    @cached_property
    def why_outputs_differ(self) -> str:
        """Return why equal models may have different outputs for equal inputs, or an empty string."""
        layers = self.changing_layers
        first = self.steps[0]
        if first in self.orders and have_same_draws(self.a, self.b, layers, self.orders[first]):
            return ""
        for side, side_layers in zip(self.sides, layers, strict=True):
            if side_layers:
                return (
                    f"{side.title} draws its own random numbers, such as dropout masks, in {side_layers[0]}: set the "
                    "rate or the noise to 0 in both scripts to compare them"
                )
        return ""

    def _has_other_masks(self, step: int) -> bool:
        """Check whether the losses of a step differ though the weights are equal: the dropout masks differ."""
        if not any(find_random_layers(side) for side in self.sides) or self.why_outputs_differ:
            return False
        losses = [side.record.get_loss(step) for side in self.sides]
        if losses[0] is None or losses[1] is None:
            return True
        has_equal_weights = self.measure_weight_difference(step - 1) < MASK_NOISE
        return has_equal_weights and abs(losses[0] - losses[1]) > MASK_NOISE * abs(losses[0])


def _hash_samples(side: RecordedSide, kind: str, step: int) -> dict[str, str]:
    """Return the hashes of the sampled variables or gradients by name. A hash covers the whole array."""
    start, abridged = f"{kind}/", side.open_file(step).abridged
    return {name.removeprefix(start): abridged[name]["sha256"] for name in abridged if name.startswith(start)}


def describe_seeds(pair: RecordPair) -> str:
    """Return words for the seeds of both scripts, or an empty string if they are the same or unknown."""
    seeds = [side.record.facts["environment"]["flags"].get("seed") for side in pair.sides]
    return "" if None in seeds or seeds[0] == seeds[1] else f" (the seed is {seeds[0]} in A and {seeds[1]} in B)"


def _fineness(precision: str) -> int:
    return ("float64", "float32", "tf32", "float16", "bfloat16").index(precision)
