"""The stage "environment": versions, device and flags that decide how numbers are rounded.

A is the reference record of a diagnosis, and B the record that is compared with it. A difference is listed. It becomes
a cause only if later stages differ, because most differences have no effect.
"""

from dataclasses import replace

from common.diagnose.findings import NOT_COMPARED, Stage, TensorCheck
from common.diagnose.recorded.record_pair import RecordPair, find_declared_precision
from common.recording.environment import EnvironmentDifference, list_differences

PACKAGES = {"torch": ("torch",), "tensorflow": ("keras", "tensorflow")}  # the packages that compute, by framework
COMPARED_INPUTS = ("hyperparameters", "data", "initial weights")  # stages that compare the inputs of a step
PRECISION_CAUSES = ("lower_precision", "computed_in_tf32", "computed_in_bfloat16", "computed_in_float16")


def compare_environments(pair: RecordPair) -> Stage:
    """List the differences in the stage's note. The verdict is then "not compared", unless it becomes a cause."""
    stage = Stage("environment")
    differences = _list_differences(pair)
    stage.note = "; ".join(map(str, differences))
    if not differences:
        stage.checks.append(TensorCheck("versions, device and flags", 0.0))
    return stage


def finish_environment(pair: RecordPair) -> None:
    """Add the differences as causes if a later stage differs: the precision, and others if nothing else explains it.

    Another precision is also a cause if a later stage was not compared, such as because of other dropout masks.
    """
    stage = pair.get_stage("environment")
    later = [other for other in pair.stages if other.name not in ("environment", "data", "initial weights")]
    causes = [cause for other in pair.stages for cause in other.causes]
    precisions = [find_declared_precision(side) for side in pair.sides]
    differs = any(check.differs for other in later for check in other.checks)
    is_hidden = precisions[0] != precisions[1] and any(other.verdict == NOT_COMPARED for other in later)
    if not differs and not is_hidden:
        return
    if precisions[0] != precisions[1]:
        side = "b" if precisions[0] in ("float32", "float64") else "a"
        sentence = f"the script computes in {precisions[0]} in A and in {precisions[1]} in B"
        is_seen = any(cause.cause in PRECISION_CAUSES for cause in causes)
        stage.add_cause("precision", side, "precision", sentence, confirmed=is_seen)
        for other in later:  # their causes would repeat this cause
            other.causes = [cause for cause in other.causes if cause.cause not in PRECISION_CAUSES]
    elif not causes and stage.note:
        stage.add_cause("environment", "b", "environment", stage.note, confirmed=False)
    elif pair.a.record.framework == pair.b.record.framework and not pair.has_difference(*COMPARED_INPUTS):
        _name_package(pair, later)


def _list_differences(pair: RecordPair) -> list[EnvironmentDifference]:
    a, b = (side.record.facts["environment"] for side in pair.sides)
    return list_differences(a, b, pair.a.is_torch == pair.b.is_torch)


def _name_package(pair: RecordPair, stages: list[Stage]) -> None:
    """Name the package that computes, with both versions, in the unconfirmed causes of the first stage that has any."""
    versions = {difference.name: difference for difference in _list_differences(pair) if difference.is_package}
    package = next((name for name in PACKAGES[pair.a.record.framework] if name in versions), None)
    first = next((stage for stage in stages if stage.causes), None)
    if package is not None and first is not None:
        origin = f"it may come from {versions[package]}"
        first.causes = [
            cause if cause.confirmed else replace(cause, sentence=f"{cause.sentence}; {origin}")
            for cause in first.causes
        ]
