"""Checks for user models that mix the examples of a batch, or whose forward passes change their parameters."""

from common.errors import UserError
from common.models.hf_config import HfConfig

# The strategies whose forward passes compute with the parameters themselves, not with copies, in every replica.
STRATEGIES_WITHOUT_COPIES = ("single", "ddp", "allreduce", "zero")


def check_restricted(strategy: str, hf_config: HfConfig) -> None:
    """Raise UserError if forward passes move parameters back into a range, but the strategy computes with copies."""
    for side, name in hf_config["restricted"].items():
        if strategy not in STRATEGIES_WITHOUT_COPIES:
            raise UserError(
                f"model.{side}: forward passes move {name} back into a range, but strategy={strategy} computes with "
                "copies of the parameter; compute with the restricted values and leave the parameter as it is, or "
                f"choose one of {', '.join(STRATEGIES_WITHOUT_COPIES)}"
            )


def check_mixing(hf_config: HfConfig) -> None:
    """Raise UserError if several replicas would train a user's model differently from one."""
    for side, layer in hf_config["mixing_layers"].items():
        raise UserError(
            f"model.{side}: what {layer} returns for an example depends on the other examples of its batch, so "
            "several replicas would train differently from one; compute every example by itself (is the order of "
            "the axes right, as batch_first says?), or use strategy=single"
        )
    for side, name in hf_config["mixed_gradients"].items():
        raise UserError(
            f"model.{side}: the gradient of {name} is not the sum of the gradients of the examples, or does not grow "
            "in proportion to the loss, so several replicas would train differently from one; change the hook or "
            "gradient function that combines, limits or normalizes gradients, or use strategy=single"
        )
    for side in hf_config["mixing_losses"]:
        raise UserError(
            f"task.{side}: the loss of an example depends on the other examples of its batch, so several replicas "
            "would train differently from one; compare every example with its own labels only, or use "
            "strategy=single"
        )
