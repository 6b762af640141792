"""Tests of the transfer of a checkpoint as a stream of bytes, and of the choice of the one to start from."""

import errno
import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.cluster.checkpoint_transfer import (
    BrokenTransferError,
    CheckpointTransfer,
    pack_checkpoint,
    unpack_checkpoint,
)
from common.config.schema import Config
from common.data.atomic_directory import write_manifest
from common.errors import UserError
from common.run.checkpoint import (
    Checkpoint,
    find_newest_checkpoint,
    open_checkpoint,
    open_unverified_checkpoint,
)
from common.run.checkpoint_state import STATE_FILE
from common.run.checkpoint_writer import CheckpointWriter
from common.run.context import RunContext, open_context
from common.run.inputs import open_inputs
from common.run.prepare import prepare_restart, prepare_run
from tests.conftest import MakeConfig
from tests.unit.common.run.conftest import save_step

pytestmark = pytest.mark.slow


class Hosts:
    """The first host's run directory, with a checkpoint of step 2, and another host that does not see it."""

    def __init__(self, make_config: MakeConfig, place: Path) -> None:
        self.directories = [place / "a" / "run", place / "b" / "run-node1"]
        self.config: Config = make_config(f"run_dir={self.directories[0]}", "resume=auto")
        self.fetched = 0
        for node, run_dir in enumerate(self.directories):
            run_dir.mkdir(parents=True)
            if node == 0:
                self.save(2)
            prepare_run(self.config, "torch", run_dir, node)
        self.first, self.other = (CheckpointTransfer(self.context(node), node) for node in (0, 1))

    def context(self, node: int) -> RunContext:
        """Return the context that a host's command has prepared."""
        return open_context(self.directories[node], "torch", is_chief=not node)

    def save(self, step: int) -> None:
        """Save a checkpoint on the first host."""
        checkpoints = CheckpointWriter(prepare_run(self.config, "torch", self.directories[0]))
        save_step(checkpoints, step, 0.5)
        checkpoints.close()

    def fetch(self, fingerprint: str) -> io.BytesIO:
        self.fetched += 1
        return io.BytesIO(b"".join(self.first.read_chunks()))

    def follow(self) -> None:
        self.other.accept_offer(json.loads(json.dumps(self.first.make_offer())), self.fetch)

    def start(self, node: int) -> Checkpoint | None:
        """Return the checkpoint that the processes of a host open."""
        return open_inputs(self.config, self.directories[node]).checkpoint

    @property
    def received(self) -> list[str]:
        """Return the names of the checkpoints on the other host."""
        return sorted(path.name for path in (self.directories[1] / "checkpoints").glob("*"))


@pytest.fixture
def hosts(small_config: MakeConfig, tmp_path: Path) -> Hosts:
    return Hosts(small_config, tmp_path)


@pytest.fixture
def checkpoint(hosts: Hosts) -> Checkpoint:
    received = hosts.start(0)
    assert received is not None
    return received


def test_the_other_host_starts_from_the_first_hosts_checkpoint(hosts: Hosts, checkpoint: Checkpoint) -> None:
    assert hosts.start(1) is None
    hosts.follow()
    received = hosts.start(1)
    assert received is not None and received.state == checkpoint.state
    assert received.directory == hosts.directories[1] / "checkpoints" / "step-00000002"
    assert open_checkpoint(received.directory).fingerprint == checkpoint.fingerprint
    for path in checkpoint.directory.iterdir():
        assert (received.directory / path.name).read_bytes() == path.read_bytes()
    assert not (hosts.directories[1].parent / "run").exists()
    hosts.follow()
    assert hosts.fetched == 1


def test_a_newer_checkpoint_replaces_the_one_before(hosts: Hosts) -> None:
    hosts.follow()
    hosts.save(4)
    prepare_restart(hosts.context(0))
    hosts.follow()
    received = hosts.start(1)
    assert received is not None and received.position.step == 4
    assert hosts.received == ["step-00000004"]


def test_what_was_received_before_is_found_again(hosts: Hosts, checkpoint: Checkpoint) -> None:
    """A scheduler may start the commands again."""
    hosts.follow()
    prepare_run(hosts.config, "torch", hosts.directories[1], 1)
    assert hosts.start(1) is None
    hosts.follow()
    assert hosts.start(1) is not None and hosts.fetched == 1
    (hosts.directories[1] / "checkpoints" / "step-00000002" / "model.safetensors").write_bytes(b"damaged")
    prepare_run(hosts.config, "torch", hosts.directories[1], 1)
    hosts.follow()
    assert hosts.fetched == 2
    received = find_newest_checkpoint(hosts.directories[1])
    assert received is not None and received.fingerprint == checkpoint.fingerprint


def test_on_shared_storage_nothing_is_fetched(hosts: Hosts, checkpoint: Checkpoint) -> None:
    shutil.move(hosts.directories[1], beside := hosts.directories[0].with_name("run-node1"))
    hosts.directories[1] = beside
    hosts.other = CheckpointTransfer(prepare_run(hosts.config, "torch", beside, 1), 1)
    hosts.follow()
    assert hosts.start(1) == checkpoint and hosts.fetched == 0
    hosts.save(4)
    prepare_restart(hosts.context(0))
    hosts.follow()
    assert hosts.start(1) == hosts.start(0) and hosts.fetched == 0 and hosts.received == []


def test_what_is_given_by_resume_need_not_be_seen(hosts: Hosts, small_config: MakeConfig, tmp_path: Path) -> None:
    config = small_config(f"run_dir={tmp_path / 'new'}", f"resume={tmp_path / 'elsewhere'}")
    (tmp_path / "new-node1").mkdir()
    with pytest.raises(UserError, match="no such directory"):
        prepare_run(config, "torch", tmp_path / "new-node1")
    context = prepare_run(config, "torch", tmp_path / "new-node1", 1)
    assert context.inputs.checkpoint is None
    CheckpointTransfer(context, 1).accept_offer(hosts.first.make_offer(), hosts.fetch)
    assert open_inputs(config, tmp_path / "new-node1").start.step == 2


def test_the_first_host_has_none(hosts: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    """The other host may still have a checkpoint of an earlier run."""
    hosts.follow()
    shutil.rmtree(hosts.directories[0] / "checkpoints")
    prepare_run(hosts.config, "torch", hosts.directories[0])
    assert hosts.first.make_offer() is None
    hosts.follow()
    assert hosts.start(1) is None
    assert f"the initial weights, and so not from {hosts.directories[1]}" in caplog.text
    caplog.clear()
    hosts.follow()
    assert not caplog.messages


@pytest.mark.parametrize("offer", ["step-00000002", {"step": "../2", "fingerprint": "x"}, {"step": 2}, [], 5])
def test_an_offer_that_is_none(hosts: Hosts, offer: object) -> None:
    with pytest.raises(BrokenTransferError, match=r"is not a checkpoint$"):
        hosts.other.accept_offer(offer, hosts.fetch)


def test_the_first_host_cannot_be_reached(hosts: Hosts) -> None:
    def fetch(fingerprint: str) -> io.BytesIO:
        raise ConnectionRefusedError("refused")

    with pytest.raises(BrokenTransferError, match=r"^refused$"):
        hosts.other.accept_offer(hosts.first.make_offer(), fetch)


def parts(checkpoint: Checkpoint) -> Iterator[int]:
    """Return positions at which the stream may end or be damaged: in each file, and in its size."""
    position = 0
    for name in (STATE_FILE, *checkpoint.state["checksums"]):
        size = (checkpoint.directory / name).stat().st_size
        yield from (position + 7, position + 8, position + 8 + size // 2, position + 7 + size)
        position += 8 + size


def assert_broken(checkpoint: Checkpoint, content: bytes, place: Path, fingerprint: str = "") -> None:
    with pytest.raises(BrokenTransferError):
        unpack_checkpoint(io.BytesIO(content), place / "step-00000002", fingerprint or checkpoint.fingerprint)
    assert [path.name for path in place.iterdir()] == ["step-00000001"], "only the earlier checkpoint must be kept"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory for a received checkpoint. It has a checkpoint already."""
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    return tmp_path / "checkpoints"


def test_a_transfer_that_ends_early(checkpoint: Checkpoint, place: Path) -> None:
    content = b"".join(pack_checkpoint(checkpoint))
    for end in (0, *parts(checkpoint)):
        assert_broken(checkpoint, content[:end], place)


def test_a_byte_that_changes(checkpoint: Checkpoint, place: Path) -> None:
    content = bytearray(b"".join(pack_checkpoint(checkpoint)))
    for position in parts(checkpoint):
        content[position] ^= 1
        assert_broken(checkpoint, bytes(content), place)
        content[position] ^= 1
    assert (
        unpack_checkpoint(io.BytesIO(content), place / "step-00000002", checkpoint.fingerprint).state
        == checkpoint.state
    )


def test_another_checkpoint_than_was_offered(checkpoint: Checkpoint, place: Path) -> None:
    assert_broken(checkpoint, b"".join(pack_checkpoint(checkpoint)), place, "0123456789abcdef")


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/../../escaped", STATE_FILE])
def test_files_outside_of_the_checkpoint(checkpoint: Checkpoint, place: Path, name: str) -> None:
    """Such files are refused even if the first host's command names them."""
    state = {**checkpoint.state, "checksums": {name: "0", **checkpoint.state["checksums"]}}
    write_manifest(checkpoint.directory, state, STATE_FILE)
    content = (checkpoint.directory / STATE_FILE).read_bytes()
    stream = len(content).to_bytes(8) + content + (7).to_bytes(8) + b"escaped"
    assert_broken(checkpoint, stream, place, open_unverified_checkpoint(checkpoint.directory).fingerprint)
    assert not list(place.parent.rglob("escaped")) and not Path("/tmp/escaped").exists()


def test_the_other_checkpoints_stay_until_the_new_one_is_in_its_place(
    checkpoint: Checkpoint, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    content = b"".join(pack_checkpoint(checkpoint))
    with monkeypatch.context() as patched, pytest.raises(UserError, match="cannot be written"):
        patched.setattr(Path, "rename", refuse)
        unpack_checkpoint(io.BytesIO(content), place / "step-00000002", checkpoint.fingerprint)
    assert [path.name for path in place.iterdir()] == ["step-00000001"]
    unpack_checkpoint(io.BytesIO(content), place / "step-00000002", checkpoint.fingerprint)
    assert [path.name for path in place.iterdir()] == ["step-00000002"]


def test_a_connection_that_times_out(checkpoint: Checkpoint, place: Path) -> None:
    class Silent(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise TimeoutError("timed out")

    with pytest.raises(BrokenTransferError, match=r"^timed out$"):
        unpack_checkpoint(Silent(), place / "step-00000002", checkpoint.fingerprint)


def test_a_full_disk(checkpoint: Checkpoint, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small disk")
    try:
        with pytest.raises(UserError) as raised:
            unpack_checkpoint(
                io.BytesIO(b"".join(pack_checkpoint(checkpoint))), disk / "step-00000002", checkpoint.fingerprint
            )
        problem = "cannot be written (No space left on device); make space or choose another place"
        assert str(raised.value) == f"{disk / 'step-00000002'}: {problem}"
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", str(disk)], check=True)
