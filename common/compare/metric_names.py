"""Names of the metrics that groups of seeds are compared by. Metrics of evaluations keep the names that they have."""

from common.statistics.verdicts import CURVE

FINAL_LOSS, VALIDATION_LOSS = "final_loss", "validation_loss"
WORDS = {CURVE: "training loss over the whole curve", FINAL_LOSS: "final training loss"}


def describe_metric_name(name: str) -> str:
    """Return a readable name of a metric."""
    return WORDS.get(name, name.replace("_", " "))
