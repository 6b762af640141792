import pynvml
import pytest

from common.hardware import cores, describe, only_gpu, peak_resident_bytes, visible_gpus


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that has four GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("nvmlInit", "nvmlShutdown"):
        monkeypatch.setattr(pynvml, name, lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 4)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert visible_gpus() == 0
    assert only_gpu(1) == {}


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("visible", "count"), [(None, 4), ("", 0), ("-1", 0), ("2", 1), ("0, 3", 2), ("0,1,2,3,4,5", 4), ("GPU-a,GPU-b", 2)]
)
def test_visible_gpus(monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == count


@pytest.mark.usefixtures("four_gpus")
def test_a_process_that_sees_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only_gpu(2) == {"CUDA_VISIBLE_DEVICES": "2"}
    assert only_gpu(None) == {"CUDA_VISIBLE_DEVICES": ""}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert only_gpu(1) == {"CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert only_gpu(0) == {}


def test_this_machine() -> None:
    found = describe()
    assert found["cores"] == cores() >= 1
    assert 1 << 20 < peak_resident_bytes() < found["memory_bytes"]
