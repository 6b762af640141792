"""The catalog of planted causes: one at a time, and two at once.

A plant is a pair of training runs, A and B. B has a known cause of a difference, which `common.diagnose` must name.
"""

from benchmarks.diagnose.model_plants import plant_bert_faults, plant_model_faults
from benchmarks.diagnose.plant import Plant
from benchmarks.diagnose.training_plants import (
    plant_config_faults,
    plant_data_faults,
    plant_precision_faults,
    plant_strategy_faults,
)

TOGETHER = (  # names of plants whose causes are planted in the same pair of runs
    ("gelu_tanh in tf", "epsilon in tf"),
    ("mask_ignored in torch", "gelu_tanh in torch"),
    ("query_key in tf", "first_token in tf"),
    ("scale in torch", "epsilon in torch"),
    ("relu in tf", "mask_inverted in tf"),
    ("causal in torch", "double_softmax in torch"),
    ("bn_epsilon in tf", "leaky in tf"),
    ("max_pool in torch", "scaled in torch"),
    ("bn_momentum in tf", "max_pool in tf"),
    ("gelu_tanh in tf", "data: labels"),
    ("relu in torch", "data: reversed"),
    ("bn_epsilon in torch", "data: scaled images"),
    ("gelu_tanh in tf", "config: optimizer.epsilon"),
    ("epsilon in torch", "config: optimizer.weight_decay"),
    ("mask_ignored in tf", "config: task.label_smoothing"),
    ("data: labels", "config: optimizer.beta2"),
    ("gelu_tanh in torch", "strategy: averaged_twice in torch"),
    ("epsilon in tf", "strategy: missing in tf"),
    ("scale in torch", "strategy: mean_of_means in torch"),
    ("first_token in tf", "strategy: bfloat16 in tf"),
    ("relu in torch", "strategy: no_decay in torch"),
    ("mask_ignored in tf", "strategy: schedule_late in tf"),
    ("strategy: rate_scaled in torch", "config: task.label_smoothing"),
    ("strategy: missing in torch", "config: optimizer.beta2"),
)


def list_single_plants() -> list[Plant]:
    """Return all planted causes, one in each pair of runs."""
    return [
        *plant_model_faults(),
        *plant_bert_faults(),
        *plant_data_faults(),
        *plant_config_faults(),
        *plant_strategy_faults(),
        *plant_precision_faults(),
    ]


def list_double_plants() -> list[Plant]:
    """Return pairs of runs with two planted causes."""
    plants = {plant.name: plant for plant in list_single_plants()}
    return [_plant_both(plants[first], plants[second]) for first, second in TOGETHER]


def _plant_both(first: Plant, second: Plant) -> Plant:
    """Combine two plants: join their faults of a model by "+", and make a faulty strategy the strategy of B."""
    arguments = dict(argument.split("=", 1) for argument in first.arguments.split())
    for key, value in (argument.split("=", 1) for argument in second.arguments.split()):
        if key.startswith("+model.arguments.") and key in arguments:
            arguments[key] += f"+{value}"
        elif key not in ("a", "b") or (key == "b" and value.endswith("faulty")):
            arguments[key] = value
    combined = " ".join(f"{key}={value}" for key, value in arguments.items())
    return Plant(f"two: {first.name}, {second.name}", combined, first.causes, second.causes)
