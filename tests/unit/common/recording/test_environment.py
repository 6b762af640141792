"""Differences between the environments of two runs or records."""

from common.recording.environment import THREAD_FLAGS, list_differences, read_environment
from common.recording.record_format import Environment

A: Environment = {
    "versions": {"torch": "2.13.0", "numpy": "2.1", "keras": "3"},
    "device": "cpu",
    "flags": {"tf32": False, "threads": 1, "seed": 0, "onednn": True, "cores": 2},
}
B: Environment = {
    "versions": {"torch": "2.14.1", "numpy": "2.1"},
    "device": "cpu",
    "flags": {"tf32": True, "threads": 2, "seed": 1, "onednn": False, "cores": 4, "deterministic": True},
}


def describe(a: Environment, b: Environment, is_one_framework: bool = True, ignored: tuple[str, ...] = ()) -> list[str]:
    return [str(difference) for difference in list_differences(a, b, is_one_framework, ignored)]


def test_what_both_record_and_what_may_decide_rounding_is_listed() -> None:
    versions, machine = "torch 2.13.0 in A and 2.14.1 in B", "cores 2 in A and 4 in B"
    threads, onednn = "threads 1 in A and 2 in B", "onednn True in A and False in B"
    assert describe(A, B) == [versions, threads, onednn, machine]
    assert describe(A, B, is_one_framework=False) == [versions, machine]
    assert describe(A, B, ignored=THREAD_FLAGS) == [versions, onednn, machine]
    assert describe(A, A) == []


def test_tf32_counts_if_one_of_both_has_a_gpu() -> None:
    gpu: Environment = {**B, "device": "H100"}
    assert "device cpu in A and H100 in B" in describe(A, gpu)
    assert "tf32 False in A and True in B" in describe(A, gpu)


def test_the_gpu_of_a_machine_counts_only_if_both_compute_on_one() -> None:
    def on(device: str, gpu: str) -> Environment:
        return {"versions": {}, "device": device, "flags": {"gpu": gpu}}

    assert describe(on("cpu", ""), on("cpu", "H100")) == []
    assert describe(on("cpu", ""), on("H100", "H100")) == ["device cpu in A and H100 in B"]
    assert describe(on("H100", "H100"), on("H100", "A100, H100")) == ["gpu H100 in A and A100, H100 in B"]


def test_the_environment_of_a_run_of_an_earlier_version_is_read() -> None:
    facts = {"framework": "tf", "strategy": "single", "replicas": 1}
    empty = read_environment(facts)  # type: ignore[arg-type]
    assert empty == {"versions": {}, "device": "unknown", "flags": {}}
    hardware = {"cores": 4, "memory_bytes": 1, "machine": "x86_64", "processor": "x86_64", "gpus": 2}
    recorded = {**facts, "hardware": hardware, "environment": {"device": "cpu", "flags": "?"}}
    environment = read_environment(recorded)  # type: ignore[arg-type]
    assert environment == {"versions": {}, "device": "cpu", "flags": {"machine": "x86_64", "cores": 4}}
    assert describe(A, empty) == []


def test_flags_that_follow_from_the_config_of_a_run_are_no_environment() -> None:
    flags = {"default_dtype": "float64", "policy": "float64", "autocast": None, "tf32": False}
    facts = {"framework": "tf", "strategy": "single", "replicas": 1, "environment": {"device": "cpu", "flags": flags}}
    assert read_environment(facts)["flags"] == {"tf32": False}  # type: ignore[arg-type]
