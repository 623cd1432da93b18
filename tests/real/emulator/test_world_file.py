"""The emulated machine is kept as sealed JSON, and a file that others could have written is never run."""

import os
import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest

from neocloud.control_plane.settings_file import WORLD_FILE
from neocloud.core.store import StoreError
from neocloud.core.store.vault import Vault
from neocloud.emulator.world_file import WorldFile
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services.slurm.slurm_records import SlurmNode
from tests.fast.engines.fake.test_fake_faults import NAMESPACE, pod

NODE = SlurmNode("worker-0", frozenset({"IDLE"}), "", "10.0.0.2", datetime(2026, 1, 1, tzinfo=UTC), 0)


def world_file(home: Path) -> WorldFile:
    return WorldFile(home, Vault(bytes(32)))


async def a_world() -> FakeWorld:
    world = FakeWorld()
    await FakeEngine(world).apply([NAMESPACE, pod()])
    return world


async def test_a_world_is_read_as_it_was_written(tmp_path: Path) -> None:
    written, read = await a_world(), FakeWorld()
    world_file(tmp_path).write(written, {"cluster": {"worker-0": NODE}})
    assert world_file(tmp_path).read(read) == {"cluster": {"worker-0": NODE}}
    assert read == written
    assert (tmp_path / WORLD_FILE).stat().st_mode & 0o777 == 0o600


def test_a_world_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    """The file was written by a release that pickled worlds and kept manifests as dictionaries."""
    read = FakeWorld()
    (tmp_path / WORLD_FILE).write_bytes((Path(__file__).parent / "worlds" / "pickled").read_bytes())
    assert world_file(tmp_path).read(read) == {"cluster": {"worker-0": NODE}}
    (pod,) = read.pods.values()
    assert pod.manifest.labels == {"role": "worker"} and pod.containers[0].is_running
    assert pod.member and str(pod.member.interface.address) == pod.ip == "10.210.0.9"
    assert {reference.kind for reference in read.objects} == {
        "VirtualNetwork",
        "Secret",
        "PersistentVolumeClaim",
    }


class Trap:
    """Unpickled without care, it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self._path),)


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / WORLD_FILE).write_bytes(pickle.dumps((Trap(tmp_path / "sprung"), {})))
    with pytest.raises(StoreError, match="posix.mkdir, which is not a part of an emulated world"):
        world_file(tmp_path).read(FakeWorld())
    assert not (tmp_path / "sprung").exists()


async def test_a_pickle_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / WORLD_FILE).write_bytes(pickle.dumps((await a_world(), {})))
    (tmp_path / WORLD_FILE).chmod(0o660)
    with pytest.raises(StoreError, match=f"chmod 600 {tmp_path / WORLD_FILE}"):
        world_file(tmp_path).read(FakeWorld())


async def test_a_world_that_was_tampered_with_is_refused(tmp_path: Path) -> None:
    world_file(tmp_path).write(await a_world(), {})
    content = bytearray((tmp_path / WORLD_FILE).read_bytes())
    content[-1] ^= 1
    (tmp_path / WORLD_FILE).write_bytes(content)
    with pytest.raises(StoreError, match="cannot be read with this key"):
        world_file(tmp_path).read(FakeWorld())


def test_a_link_in_its_stead_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / WORLD_FILE).symlink_to(tmp_path / "other")
    with pytest.raises(StoreError, match="Check who owns it"):
        world_file(tmp_path).read(FakeWorld())
