"""Volumes of the fake engine: in memory, and in folders once processes of this machine are to see them."""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from neocloud.engines.base import EngineError, Reference
from neocloud.engines.fake.faults import Faults
from neocloud.engines.fake.world import FakeWorld
from neocloud.engines.manifest import VolumeClaim


@dataclass(frozen=True)
class FolderFiles(MutableMapping[str, bytes]):
    """The files below a folder, by path."""

    folder: Path

    def __getitem__(self, path: str) -> bytes:
        try:
            return (self.folder / path).read_bytes()
        except OSError as error:
            raise KeyError(path) from error

    def __setitem__(self, path: str, content: bytes) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_bytes(content)

    def __delitem__(self, path: str) -> None:
        (self.folder / path).unlink()

    def __iter__(self) -> Iterator[str]:
        return (str(each.relative_to(self.folder)) for each in self.folder.rglob("*") if each.is_file())

    def __len__(self) -> int:
        return sum(1 for _ in self)


class FakeVolumes:
    """The part of FakeEngine that lists volumes."""

    world: FakeWorld
    faults: Faults
    folders: Path | None
    """Where filesystems are that processes of this machine see; None: they see none."""

    async def stored_bytes(self, claim: Reference) -> int:
        self.faults.check_available()
        return sum(map(len, self.world.volumes.get(claim, {}).values()))

    async def shared_folder(self, claim: Reference) -> str:
        self.faults.check_available()
        manifest = self.world.objects.get(claim)
        if not isinstance(manifest, VolumeClaim) or not manifest.is_filesystem:
            raise EngineError(f"{claim.kind} {claim.name} is not a filesystem that exists; apply it first.")
        if self.folders is None:
            raise EngineError("This engine keeps its files in memory, where other processes do not see them.")
        known = self.world.volumes.get(claim, {})
        if not isinstance(known, FolderFiles):
            shown = FolderFiles(self.folders / claim.namespace / claim.name)
            shown.folder.mkdir(parents=True, exist_ok=True)
            shown.update(known)
            self.world.volumes[claim] = known = shown
            self.world.save()
        return str(known.folder)
