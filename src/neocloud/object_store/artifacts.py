"""Reads the images of registries from the metadata that the object store writes; another process may."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neocloud.core import contract
from neocloud.data_plane.gateway_keys import object_gateway_folder
from neocloud.messages.nebius.registry.v1 import Artifact
from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.metadata.location import reading
from neocloud.object_store.metadata.transaction import to_time

_SELECT = (
    "SELECT manifest.number, manifest.id, repository.name, manifest.media_type, manifest.digest,"
    " manifest.image_bytes, manifest.parents, manifest.created_ms, manifest.updated_ms, bucket.id"
    " FROM manifest JOIN repository ON repository.number = manifest.repository"
    " JOIN bucket ON bucket.number = manifest.bucket AND bucket.forgotten_ms IS NULL WHERE "
)
_INDEXES = ("index", "list")
"""Words in the media types of manifests that name other manifests."""
MAX_TAGS = 1000
"""How many tags of one image are shown."""


@dataclass(frozen=True)
class FoundArtifact:
    registry_id: str
    artifact: Artifact
    is_in_index: bool
    """Whether an index names it, so that it cannot go alone."""


class ArtifactReader:
    """Its methods block."""

    def __init__(self, home: Path) -> None:
        """`home` is the state folder of the cloud."""
        self._home = object_gateway_folder(home)

    def find(self, artifact_id: str) -> FoundArtifact | None:
        with self.reading() as connection:
            if connection is None:
                return None
            row = connection.execute(f"{_SELECT} manifest.id = ?", (artifact_id,)).fetchone()  # nosec B608
            return None if row is None else _found(connection, row)

    def page(self, registry_id: str, after: int, limit: int) -> tuple[Sequence[FoundArtifact], int]:
        """Return artifacts in the order of their first push, and the `after` of the next page; 0: no more."""
        with self.reading() as connection:
            if connection is None:
                return (), 0
            rows = connection.execute(
                f"{_SELECT} bucket.id = ? AND manifest.number > ? ORDER BY manifest.number LIMIT ?",  # nosec B608
                (registry_id, after, limit + 1),
            ).fetchall()
            shown = rows[:limit]
            return [_found(connection, row) for row in shown], shown[-1][0] if len(rows) > limit else 0

    def image_count(self, registry_id: str) -> int:
        """Return the number of images; an index with all that it names is one."""
        with self.reading() as connection:
            if connection is None:
                return 0
            row = connection.execute(
                "SELECT count(*) FROM manifest JOIN bucket ON bucket.number = manifest.bucket"
                " WHERE bucket.id = ? AND manifest.parents = 0",
                (registry_id,),
            ).fetchone()
            return row[0]

    def reading(self) -> AbstractContextManager[Connection | None]:
        """Return a connection that reads one state of the metadata; None where there are no registries yet.
        Raises ApiError (UNAVAILABLE) when it is entered."""
        return reading(self._home, "manifest")


def _found(connection: Connection, row: Any) -> FoundArtifact:
    number, id, repository, media_type, digest, size, parents, created_ms, updated_ms, registry_id = row
    tags = connection.execute(
        "SELECT name FROM tag WHERE manifest = ? ORDER BY name LIMIT ?", (number, MAX_TAGS)
    )
    is_index = any(each in media_type for each in _INDEXES)
    artifact = Artifact(
        id=id,
        name=repository,
        media_type=media_type,
        digest=digest,
        size=size,
        status=Artifact.Status.Value("ACTIVE"),
        type=Artifact.Type.Value("MANIFEST_LIST" if is_index else "MANIFEST"),
        created_at=contract.timestamp(to_time(created_ms)),
        updated_at=contract.timestamp(to_time(updated_ms)),
        tags=[name for (name,) in tags],
    )
    return FoundArtifact(registry_id, artifact, bool(parents))
