import platform
from pathlib import Path

import pynvml
import pytest

from common import hardware
from common.hardware import count_cores, count_visible_gpus, describe_hardware, get_peak_resident_bytes, select_gpu
from tests.conftest import Python


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that has four GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("nvmlInit", "nvmlShutdown"):
        monkeypatch.setattr(pynvml, name, lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 4)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda index: f"GPU {index // 2}")


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert count_visible_gpus() == 0
    assert select_gpu(1) == {}


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("visible", "count"), [(None, 4), ("", 0), ("-1", 0), ("2", 1), ("0, 3", 2), ("0,1,2,3,4,5", 4), ("GPU-a,GPU-b", 2)]
)
def test_visible_gpus(monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_visible_gpus() == count


@pytest.mark.usefixtures("four_gpus")
def test_a_process_that_sees_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert select_gpu(2) == {"CUDA_VISIBLE_DEVICES": "2"}
    assert select_gpu(None) == {"CUDA_VISIBLE_DEVICES": ""}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert select_gpu(1) == {"CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert select_gpu(0) == {}


def test_this_machine() -> None:
    found = describe_hardware()
    assert found["cores"] == count_cores() >= 1
    assert 1 << 20 < get_peak_resident_bytes() < int(found["memory_bytes"])


@pytest.mark.usefixtures("four_gpus")
def test_processor_and_gpus_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hardware, "CPU_INFO", tmp_path / "cpuinfo")
    assert describe_hardware()["processor"] in (platform.processor(), platform.machine())
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Core A\nflags\t\t: fpu sse4_2 fma avx2\n\nprocessor\t: 1\nmodel name\t: B\n"
    )
    assert describe_hardware() | {"memory_bytes": 0, "machine": "", "cores": 0} == {
        "machine": "",
        "processor": "Core A",
        "instruction_sets": "avx2 fma",
        "cores": 0,
        "memory_bytes": 0,
        "gpus": 4,
        "gpu": "GPU 0, GPU 1",
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert describe_hardware()["gpu"] == ""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu.max": "900000 100000\n"}, 4),
        ({"cpu.max": "no numbers\n"}, 4),
        ({}, 4),
    ],
)
def test_a_container_has_the_cores_of_its_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)
    monkeypatch.setattr(hardware.psutil.Process, "cpu_affinity", lambda self: [0, 1, 2, 3])
    assert hardware.count_cores() == expected


COUNT_PAGE_FAULTS = """
import resource, sys
from common.hardware import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()

def step():
    buffers = [bytearray(1 << 20) for _ in range(20)]

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_freed_memory_is_kept_for_the_next_step(python: Python) -> None:
    returned, kept = (int(python(COUNT_PAGE_FAULTS, mode)) for mode in ("returned", "kept"))
    assert kept < returned / 10
