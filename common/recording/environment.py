"""The environment of a run or a record of a script: what decides how the same training rounds its numbers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from common.recording.record_format import Environment
from common.records.summary import RunFacts

LOCKSTEP_FLAGS = ("autocast", "default_dtype", "policy")  # flags that the config of a run decides
GPU_FLAGS = ("tf32", "tensor_float_32", "tf32_override", "cudnn_tf32", "cudnn_deterministic", "cudnn_benchmark")
IGNORED_FLAGS = ("world_size", "seed", "strategy", "replicas", "devices")  # they differ between equal training runs
THREAD_FLAGS = ("threads", "inter_op_threads")  # they follow from the strategy and the number of replicas
SHARED_FLAGS = (
    "tf32",
    "tensor_float_32",
    "tf32_override",
    "autocast",
    "default_dtype",
)  # they mean the same in both frameworks
# Properties of the machine that decide which instructions compute. The memory and the number of GPUs do not, and a
# process may see only a part of them.
COMPARED_HARDWARE = ("machine", "processor", "instruction_sets", "cores", "gpu")
UNKNOWN_DEVICE = "unknown"  # earlier versions did not record the device


@dataclass(frozen=True)
class EnvironmentDifference:
    """A version, device or flag that differs between A and B."""

    name: str
    a: object
    b: object
    is_package: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.a} in A and {self.b} in B"


def read_environment(summary: RunFacts) -> Environment:
    """Return the environment that a run recorded. Earlier versions did not record flags."""
    recorded, hardware = (_to_mapping(summary.get(name)) for name in ("environment", "hardware"))
    machine = {name: hardware[name] for name in COMPARED_HARDWARE if name in hardware}
    if machine.get("processor") == machine.get("machine"):  # earlier versions did not know the processor
        machine.pop("processor", None)
    flags = {name: value for name, value in _to_mapping(recorded.get("flags")).items() if name not in LOCKSTEP_FLAGS}
    return {
        "versions": {name: str(value) for name, value in _to_mapping(summary.get("versions")).items()},
        "device": str(recorded.get("device", UNKNOWN_DEVICE)),
        "flags": {**machine, **flags},
    }


def list_differences(
    a: Environment, b: Environment, is_one_framework: bool, ignored: Collection[str] = ()
) -> list[EnvironmentDifference]:
    """Return the values in which two environments differ and which may change how numbers are rounded.

    Args:
        a: One environment.
        b: The other environment.
        is_one_framework: Whether both environments have the same framework, so that all of their flags are comparable.
        ignored: Further flags that are not compared.
    """
    versions = [
        EnvironmentDifference(name, version, b["versions"][name], is_package=True)
        for name, version in a["versions"].items()
        if b["versions"].get(name, version) != version
    ]
    devices = {a["device"], b["device"]}
    device = [EnvironmentDifference("device", a["device"], b["device"])] if len(devices - {UNKNOWN_DEVICE}) > 1 else []
    flags = [
        EnvironmentDifference(name, value, b["flags"][name])
        for name, value in a["flags"].items()
        if b["flags"].get(name, value) != value and name not in ignored and _matters(name, devices, is_one_framework)
    ]
    return [*versions, *device, *flags]


def _matters(flag: str, devices: set[str], is_one_framework: bool) -> bool:
    """Check whether a difference of a flag may decide how numbers are rounded."""
    if flag in IGNORED_FLAGS or (flag in GPU_FLAGS and devices == {"cpu"}):
        return False
    if flag == "gpu" and "cpu" in devices:  # a GPU computes nothing on a side that uses the CPU
        return False
    return is_one_framework or flag in (*SHARED_FLAGS, *COMPARED_HARDWARE)


def _to_mapping(value: object) -> dict[str, object]:
    return {str(name): entry for name, entry in value.items()} if isinstance(value, Mapping) else {}
