"""The stage "environment": versions, hardware, device and flags of two runs, which decide how numbers are rounded.

A is the reference run of a diagnosis, and B the run that is compared with it. Their differences are listed. If two runs
of one framework have equal configs, the first difference of a later stage is attributed to the environment, and the
package that computes the tensor is named.
"""

from collections.abc import Sequence
from dataclasses import replace

from common.diagnose.comparison import SideComparison
from common.diagnose.findings import DIFFERS, EQUAL, Stage, TensorCheck
from common.diagnose.side_run import SideRun
from common.interpreter import find_different_files
from common.recording.environment import THREAD_FLAGS, EnvironmentDifference, list_differences, read_environment
from common.records.summary import read_final_summary

STAGE, CAUSE = "environment", "environment"
PACKAGES = {"torch": ("torch",), "tf": ("keras", "tensorflow")}  # the packages that compute, by framework
LAYER_PACKAGES = ("torch", "transformers", "keras", "keras_hub", "tensorflow")  # the packages that define layers
# Stages that compute each model in one process, so that the strategy does not matter
MODEL_STAGES = ("activations", "activations in training mode", "loss", "gradients")
LISTED_FILES = 3  # number of files that a sentence lists


def compare_environments(a: SideRun, b: SideRun) -> Stage:
    """List the differences in the stage's note. If there are any, the verdict of the stage is "not compared"."""
    stage = Stage(STAGE, note="; ".join(map(str, list_environment_differences(a, b))))
    if not stage.note:
        stage.checks.append(TensorCheck("versions, device and flags", 0.0))
    return stage


def list_environment_differences(a: SideRun, b: SideRun) -> list[EnvironmentDifference]:
    """Return the differences between the recorded environments of both runs."""
    summary_a, summary_b = (read_final_summary(run.directory) for run in (a, b))
    if summary_a is None or summary_b is None:
        return []
    is_one_framework = a.arguments.framework == b.arguments.framework
    ignored = () if _have_one_strategy(a, b) else THREAD_FLAGS
    return list_differences(read_environment(summary_a), read_environment(summary_b), is_one_framework, ignored)


def _have_one_strategy(a: SideRun, b: SideRun) -> bool:
    return (a.arguments.strategy, a.replicas) == (b.arguments.strategy, b.replicas)


def finish_environment(comparison: SideComparison) -> list[str]:
    """Name the package at the first difference if only the environment differs. Return notes for the report."""
    a, b = comparison.a, comparison.b
    differences = list_environment_differences(a, b)
    is_same_training = a.arguments.framework == b.arguments.framework and comparison.stage("config").verdict == EQUAL
    if not is_same_training or (not differences and a.arguments.python == b.arguments.python):
        return []
    first = next((stage for stage in comparison.stages if stage.verdict == DIFFERS), None)
    if first is None:
        listed = f"the environments differ ({'; '.join(map(str, differences))})" if differences else ""
        return [f"{listed}, and no difference exceeds rounding"] if listed else []
    if not _have_one_strategy(a, b) and first.name not in MODEL_STAGES:
        return []
    worst = first.worst_check
    tensor = first.causes[0].tensor if first.causes else worst.tensor if worst else first.name
    origin = _find_origin(comparison, tensor, differences)
    if first.causes:
        first.causes = [replace(cause, sentence=f"{cause.sentence}; {origin}") for cause in first.causes]
    else:
        first.add_cause(CAUSE, "b", tensor, f"{tensor}: differs, and {origin}", confirmed=False)
    return []


def _find_origin(comparison: SideComparison, tensor: str, differences: Sequence[EnvironmentDifference]) -> str:
    """Describe the origin of a difference: the package that differs, or all differences of the environments.

    The package that defines the layer at `tensor` comes first, then those of the framework.
    """
    versions = {difference.name: difference for difference in differences if difference.is_package}
    python_a, python_b = comparison.a.arguments.python, comparison.b.arguments.python
    packages = (*_list_layer_packages(comparison, tensor), *PACKAGES[comparison.a.arguments.framework])
    for package in dict.fromkeys(packages):
        if (name := package.replace("_", "-")) in versions:
            others = "".join(f"; {difference}" for difference in differences if not difference.is_package)
            return f"the environment has {versions[name]}{others}"
        if python_a != python_b and (files := find_different_files(package, python_a, python_b)):
            listed = ", ".join(files[:LISTED_FILES])
            more = f" and {len(files) - LISTED_FILES} more files" if len(files) > LISTED_FILES else ""
            return f"both environments have one version of {package}, but these files differ: {listed}{more}"
    listed = "; ".join(map(str, differences))
    return f"only the environment differs: {listed}" if listed else "only the interpreter differs"


def _list_layer_packages(comparison: SideComparison, tensor: str) -> list[str]:
    """Return the packages that define the class of the layer at a tensor, on either side; empty for other tensors."""
    layers = [layer for layer in comparison.layers if tensor.removeprefix("input of ").startswith(layer.title)]
    if not layers:
        return []
    layer = max(layers, key=lambda layer: len(layer.title))
    sides = (("a", layer.path_a), ("b", layer.path_b))
    classes = [comparison.processes[name].call("classes").get(path, "") for name, path in sides]
    return [package for package in (name.partition(".")[0] for name in classes) if package in LAYER_PACKAGES]
