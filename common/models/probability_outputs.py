"""Outputs of a user's model that are probabilities, although their loss applies a softmax once more."""

import logging
from collections.abc import Mapping

from common.config.models import CustomModelSettings
from common.config.schema import Config
from common.config.task_kinds import MultiOutputSettings
from common.config.tasks import ClassificationSettings, LanguageModelSettings, TaskSettings
from common.map.description import ModelDescription
from common.models.hf_config import HfConfig

log = logging.getLogger("lockstep")


def find_probabilities(
    task: TaskSettings,
    descriptions: Mapping[str, ModelDescription],
    outputs: Mapping[str, str | list[str]],
) -> dict[str, dict[str, str]]:
    """Return the outputs that add up to 1 although their loss applies a softmax, with the kind of their task, by side.

    outputs: by side, the name of the output, or the names of several outputs.
    """
    tasks = [output.task for output in task.tasks] if isinstance(task, MultiOutputSettings) else [task]
    probabilities: dict[str, dict[str, str]] = {}
    for side, description in descriptions.items():
        output = outputs[side]
        names = output if isinstance(output, list) else [output]
        probabilities[side] = {
            name: output_task.kind
            for output_task, name in zip(tasks, names, strict=False)  # a contrastive task has several outputs
            if name in description.probabilities
            and isinstance(output_task, ClassificationSettings | LanguageModelSettings)
        }
    return probabilities


def warn_of_probabilities(config: Config, hf_config: HfConfig) -> None:
    """Log a warning for each output of `find_probabilities`. Each run that opens the model gets it."""
    assert isinstance(config.model, CustomModelSettings)
    for side, kinds in hf_config["probabilities"].items():
        for name, kind in kinds.items():
            log.warning(
                "%s=%s: output %s adds up to 1, as after a softmax, but task=%s takes logits and applies a softmax "
                "itself; remove the model's, unless the original script applies two",
                *(config.model.get_key(side), hf_config["factories"][side], name, kind),
            )
