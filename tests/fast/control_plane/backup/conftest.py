"""A state folder with a database that is in use, and a key for its backups."""

import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from neocloud.control_plane.backup.contents import Manifest
from neocloud.control_plane.backup.keys import Keys, Lock, new_key, read_keys
from neocloud.control_plane.backup.restore import restore_backup
from neocloud.control_plane.backup.write import write_backup
from neocloud.core.clock import SystemClock
from neocloud.core.osfiles import ensure_private
from neocloud.core.store import Store, Transaction, load_or_make_key, open_store
from neocloud.core.store.vault import KEY_BYTES
from neocloud.settings.settings import Settings
from neocloud.testing.store_conformance.records import resource

SECRET = b"MARKER-4711"


@dataclass(frozen=True)
class UsedHome:
    """A state folder, and its store as the server has it open."""

    path: Path
    store: Store

    @property
    def settings(self) -> Settings:
        return Settings(home=self.path)

    def back_up(self, target: Path, lock: Lock, *, replace: bool = False) -> Manifest:
        return write_backup(self.settings, target, lock, lambda _: None, replace=replace)


async def opened(home: Path) -> Store:
    return await open_store(home / "state.db", load_or_make_key(home / "store.key"), SystemClock())


async def insert(store: Store, numbers: range) -> None:
    def work(tx: Transaction) -> None:
        for number in numbers:
            tx.insert(resource(f"slurmcluster-e00n{number}", name=f"n{number}"))

    await store.write(work)


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check removes what killed commands left in the temporary folder, which tests beside it use."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


@pytest.fixture
async def used(tmp_path: Path) -> AsyncIterator[UsedHome]:
    home = tmp_path / "home"
    ensure_private(home)
    store = await opened(home)
    await insert(store, range(3))
    await store.write(lambda tx: tx.put_secret("slurmcluster-e00n0", "key", SECRET))
    (home / "config.json").write_text(json.dumps({"emulator": True, "price_file": "/etc/prices.yaml"}))
    (home / "credentials.json").write_text("{}")
    (home / "ranges.json").write_text("{}")
    for name in ("gateway/key", "tls/ca.pem", "tls/ca.key", "server.json", "volumes/data"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(name)
    assert (home / "store.key").stat().st_size == KEY_BYTES
    yield UsedHome(home, store)
    await store.close()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    file = tmp_path / "backup.key"
    file.write_text(new_key())
    file.chmod(0o600)
    return read_keys(file)


@pytest.fixture
def backup(used: UsedHome, keys: Keys, tmp_path: Path) -> Path:
    target = tmp_path / "cloud.age"
    used.back_up(target, keys)
    return target


def restored(source: Path, lock: Lock, home: Path) -> Manifest:
    return restore_backup(source, lock, home, lambda _: None)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", folder], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("a small disk needs the right to mount")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
