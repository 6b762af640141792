"""The stage "config": the config keys that decide the loss curve, such as the learning rate.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from common.config.compose import collect_values
from common.config.keys import CURVE
from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.side_run import SideRun
from common.errors import UserError

# Keys that common.diagnose sets itself, or that name a model, whose layers and weights other stages compare
KEYS_OF_THIS_COMMAND = ("train.steps", "schedule.total_steps", "model.kind", "model.arguments")


def compare_configs(a: SideRun, b: SideRun) -> Stage:
    """Compare the keys that decide the curve; each that differs is a cause. Raise UserError for two kinds of models."""
    kind_a, kind_b = a.config.model.kind, b.config.model.kind
    if kind_a != kind_b:
        raise UserError(f"model.kind: is {kind_a} in a and {kind_b} in b; choose one model for both")
    stage = Stage("config")
    for key, (value_a, value_b) in find_different_keys(a, b).items():
        stage.add_mismatch(key)
        stage.add_cause(key, "b", key, f"{key} is {value_a} in A and {value_b} in B", confirmed=False)
    if not stage.checks:
        stage.checks.append(TensorCheck("all keys that decide the curve", 0.0))
    return stage


def find_different_keys(a: SideRun, b: SideRun) -> dict[str, tuple[object, object]]:
    """Return the values in A and B of each differing key that decides the curve.

    The keys of the strategies are left out: the runs may use different strategies, whose effects other stages compare.
    """
    values_a, values_b = collect_values(a.config, CURVE), collect_values(b.config, CURVE)
    return {
        key: (value, values_b[key])
        for key, value in values_a.items()
        if key in values_b
        and value != values_b[key]
        and not key.startswith("strategy.")
        and key not in KEYS_OF_THIS_COMMAND
    }


def list_values_of_a(a: SideRun, b: SideRun) -> dict[str, object]:
    """Return A's values of the differing keys. If a kind differs, all keys of its group, such as optimizer, differ."""
    different_keys = find_different_keys(a, b)
    groups = tuple(key.removesuffix("kind") for key in different_keys if key.endswith(".kind"))
    return {
        key: value for key, value in collect_values(a.config).items() if key in different_keys or key.startswith(groups)
    }
