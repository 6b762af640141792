"""The settings that decide the loss curve of a run: a resumed run must have the values of its checkpoint.

Curve settings are the values of the config keys with the scope CURVE, the fingerprint of the data (DATA), and the
version of the batch plan, which orders the examples (PLAN).
"""

from common.config.compose import collect_values
from common.config.keys import CURVE
from common.config.legacy import ADDED_TO_TRANSFORMED_DATA, upgrade_values
from common.config.models import CustomModelSettings
from common.config.schema import Config, collect_keys
from common.config.strategies import TITLES
from common.data import batch_plan
from common.data.cache import Cache
from common.errors import UserError
from common.models.initial_weights import WEIGHTS
from common.run.checkpoint import DATA, PLAN, Checkpoint

TOTAL_STEPS = "schedule.total_steps"


def collect_curve_settings(config: Config, data_fingerprint: str) -> dict[str, object]:
    """Return the settings that decide the curve of a run with this config, by the full names of the keys."""
    return {**upgrade_values(collect_values(config, CURVE)), DATA: data_fingerprint, PLAN: batch_plan.PLAN_VERSION}


def check_resume(config: Config, cache: Cache, checkpoint: Checkpoint) -> None:
    """Raise UserError if a run with this config and data would not continue the curve of the checkpoint.

    cache: the examples of the run.
    """
    wanted, saved, table = collect_curve_settings(config, cache.fingerprint), checkpoint.settings, collect_keys()
    # A checkpoint does not name the kind of its data, so that `upgrade_values` does not know whether it has these keys.
    saved = {**{key: value for key, value in ADDED_TO_TRANSFORMED_DATA.items() if key in wanted}, **saved}
    if saved[PLAN] != wanted[PLAN]:
        raise UserError(
            f"resume={config.resume}: {checkpoint.directory} was trained in the order of version {saved[PLAN]} of the "
            f"batch plan, and this is version {wanted[PLAN]}; finish that run with the Lockstep that started it, or "
            f"start a new one from its weights with {_format_start_from_weights(config, checkpoint)}"
        )
    if not config.data.allow_change and saved[DATA] != wanted[DATA]:
        raise UserError(
            f"data={config.data.kind}: differs from the data of {checkpoint.directory} (fingerprint {wanted[DATA]}, "
            f"not {saved[DATA]}); pass the same data, or data.allow_change=true to continue with this data"
        )
    # Keys of the checkpoint that this version of Lockstep no longer knows still count.
    keys = [key for key in {**saved, **wanted} if key != DATA and (key not in table or table[key].scope is CURVE)]
    if saved.get("schedule.kind") == wanted["schedule.kind"] and not config.schedule.uses_total_steps:
        keys.remove(TOTAL_STEPS)  # this schedule does not read it
    if differing := [key for key in keys if saved.get(key) != wanted.get(key)]:
        listed = ", ".join(f"{key} ({wanted.get(key)}, not {saved.get(key)})" for key in differing)
        hint = ""
        if TOTAL_STEPS in differing:
            hint = f"; with {TOTAL_STEPS}={saved.get(TOTAL_STEPS)} the learning rate no longer changes after that step"
        raise UserError(
            f"resume={config.resume}: {checkpoint.directory} was trained with other values of {listed}; pass the same "
            f"values, or start from its weights with {_format_start_from_weights(config, checkpoint)}{hint}"
        )
    if checkpoint.position.plan_position > config.train.steps:
        raise UserError(
            f"train.steps={config.train.steps}: {checkpoint.directory} has already trained "
            f"{checkpoint.position.plan_position} steps; raise train.steps"
        )


def check_native_slots(config: Config, framework: str, checkpoint: Checkpoint) -> None:
    """Raise UserError if the other framework saved slots in its own layout, which cannot be converted."""
    optimizer, environments = config.optimizer, checkpoint.environments
    trained_by = environments[-1]["framework"] if environments else framework
    if optimizer.semantics == "native" and optimizer.uses_layout and trained_by not in (framework, None):
        raise UserError(
            f"resume={config.resume}: {checkpoint.directory} has the slots of {TITLES[str(trained_by)]}'s own "
            f"{optimizer.kind}, which {TITLES[framework]}'s does not have; resume it in {TITLES[str(trained_by)]}, or "
            f"start a new run from its weights with {_format_start_from_weights(config, checkpoint)}"
        )


def _format_start_from_weights(config: Config, checkpoint: Checkpoint) -> str:
    """Return the overrides that start a run from the weights of a checkpoint."""
    if isinstance(config.model, CustomModelSettings):
        return f"model.checkpoint={checkpoint.directory / WEIGHTS}"
    return f"model=pretrained model.checkpoint={checkpoint.directory}"
