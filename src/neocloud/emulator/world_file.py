# pyright: standard
"""The file of the home folder that keeps the emulated machine across restarts.

It holds data of tenants, so it is JSON that is encrypted with the store's key. Earlier releases
wrote a pickle. One is still read, once, under two guards: only the owner of the home can have written it, and
it may name no classes but those that an emulated world is made of.
"""

import io
import json
import os
import pickle  # reads what an earlier version wrote, classes by name  # nosec B403
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from neocloud.control_plane.settings_file import WORLD_FILE
from neocloud.core.json_values import as_object
from neocloud.core.osfiles import write_file
from neocloud.core.store import StoreError
from neocloud.core.store.vault import FORMAT, Vault
from neocloud.engines.fake import FakeWorld
from neocloud.engines.fake.world_document import document_of, fill_world
from neocloud.engines.manifest import Pod, read_manifest
from neocloud.services.slurm.slurm_records import SlurmNode

SlurmRecords = Mapping[str, dict[str, SlurmNode]]

_PICKLED = {
    ("neocloud.emulator.machine", "EmulatedWorld"),
    ("neocloud.engines.fake.world", "FakeWorld"),
    ("neocloud.engines.fake.world", "FakePod"),
    ("neocloud.engines.fake.world", "FakeContainer"),
    ("neocloud.engines.fake.world", "ContainerState"),
    ("neocloud.engines.fake.by_namespace", "ByNamespace"),
    ("neocloud.engines.base", "Reference"),
    ("neocloud.engines.interface", "Member"),
    ("neocloud.engines.interface", "Interface"),
    ("neocloud.services.slurm.reconcile.slurmrestd", "SlurmNode"),
    ("ipaddress", "IPv4Address"),
    ("datetime", "datetime"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
}
"""Classes that run no code of their own when they are built."""

_MOVED = {
    "neocloud.engines.fake.by_namespace": "neocloud.engines.fake.world",
    "neocloud.engines.interface": "neocloud.engines.manifest.network_spec",
    "neocloud.services.slurm.reconcile.slurmrestd": "neocloud.services.slurm.slurm_records",
}


class WorldFile:
    def __init__(self, home: Path, vault: Vault) -> None:
        self._path = home / WORLD_FILE
        self._vault = vault

    def write(self, world: FakeWorld, slurm: SlurmRecords) -> None:
        nodes = {
            namespace: {name: _node(node) for name, node in found.items()}
            for namespace, found in slurm.items()
        }
        content = json.dumps({"world": document_of(world), "slurm": nodes}).encode()
        write_file(self._path, self._vault.seal(WORLD_FILE, WORLD_FILE, content))

    def read(self, new: FakeWorld) -> SlurmRecords:
        """Fill the new world from the file, and return the records of Slurm. Raises StoreError when the file
        cannot be read, with what to do about it."""
        try:
            with open(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                is_foreign = _is_foreign(os.fstat(file.fileno()))
                content = file.read()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StoreError(f"Cannot read {self._path}: {error.strerror}. Check who owns it.") from error
        if content[:1] == FORMAT:
            found = json.loads(self._vault.open(WORLD_FILE, WORLD_FILE, content))
            fill_world(new, found["world"])
            return _nodes(found["slurm"])
        if is_foreign:
            raise StoreError(
                f"{self._path} may have been written by others and is not read. If it is yours, run: "
                f"chown {os.geteuid()} {self._path} && chmod 600 {self._path}"
            )
        return self._read_old(content, new)

    def _read_old(self, content: bytes, new: FakeWorld) -> SlurmRecords:
        try:
            world, slurm = _Unpickler(io.BytesIO(content)).load()
            vars(world).update({**vars(FakeWorld()), **vars(world)})  # fields that came later
            _read_manifests(world)
            fill_world(new, json.loads(json.dumps(document_of(world))))
        except (pickle.UnpicklingError, ValueError, TypeError, EOFError, KeyError, AttributeError) as error:
            raise StoreError(
                f"{self._path} is damaged ({error}). "
                "Move it away: the emulator then starts with an empty machine."
            ) from error
        return slurm


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _PICKLED:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is not a part of an emulated world"
            )
        return super().find_class(_MOVED.get(module, module), name)


def _read_manifests(world: FakeWorld) -> None:
    """A pickle holds manifests as dictionaries."""
    for reference, manifest in list(world.objects.items()):
        world.objects[reference] = read_manifest(manifest)
    for pod in world.pods.values():
        pod.manifest = Pod.from_dict(as_object(pod.manifest))


def _is_foreign(found: os.stat_result) -> bool:
    return found.st_uid != os.geteuid() or bool(found.st_mode & 0o022)


def _node(node: SlurmNode) -> dict[str, object]:
    started_at = node.slurmd_started_at.isoformat()
    return {**asdict(node), "states": sorted(node.states), "slurmd_started_at": started_at}


def _nodes(document: Mapping[str, Mapping[str, Any]]) -> SlurmRecords:
    return {
        namespace: {name: _node_from(node) for name, node in found.items()}
        for namespace, found in document.items()
    }


def _node_from(node: Mapping[str, Any]) -> SlurmNode:
    started_at = datetime.fromisoformat(node["slurmd_started_at"])
    return SlurmNode(**{**node, "states": frozenset(node["states"]), "slurmd_started_at": started_at})
