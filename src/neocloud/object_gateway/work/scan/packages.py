"""Packages installed in images, as rows of the store: read once, since images never change."""

import zlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import orjson

from neocloud.object_gateway.work.scan.inventory import Inventory
from neocloud.object_store.metadata.connection import Connection
from neocloud.object_store.metadata.transaction import Transaction, to_time

IMAGE_TYPES = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)
"""Artifact types of manifests that have root file systems, and not charts or signatures."""


class Outcome(StrEnum):
    READ = "read"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Waiting:
    """An image that was not read yet."""

    number: int
    repository: str
    digest: str


@dataclass(frozen=True)
class ReadImage:
    outcome: Outcome
    problem: str
    """Why it could not be read."""
    inventory: Inventory
    read_at: datetime


def next_waiting(connection: Connection, bucket: int, after: int) -> Waiting | None:
    row = connection.execute(
        "SELECT m.number, repository.name, m.digest FROM manifest AS m"
        " JOIN repository ON repository.number = m.repository"
        " WHERE m.bucket = ? AND m.number > ? AND m.artifact_type IN (?, ?) AND NOT EXISTS"
        " (SELECT 1 FROM image_packages AS p WHERE p.bucket = m.bucket AND p.digest = m.digest)"
        " ORDER BY m.number LIMIT 1",
        (bucket, after, *IMAGE_TYPES),
    ).fetchone()
    return Waiting(*row) if row else None


def put(tx: Transaction, bucket: int, digest: str, inventory: Inventory, problem: str) -> None:
    """Store what an image has, if it is still there."""
    tx.connection.execute(
        "INSERT INTO image_packages SELECT ?, ?, ?, ?, ?, ?, ?, ?"
        " WHERE EXISTS (SELECT 1 FROM manifest WHERE bucket = ? AND digest = ?) ON CONFLICT DO NOTHING",
        (
            *(bucket, digest, Outcome.UNREADABLE if problem else Outcome.READ, problem),
            *(inventory.release, inventory.packages),
            *(zlib.compress(orjson.dumps(inventory.sources)), tx.now_ms, bucket, digest),
        ),
    )


def find(connection: Connection, registry_id: str, digest: str) -> ReadImage | None:
    row = connection.execute(
        "SELECT outcome, problem, release, packages, sources, read_ms FROM image_packages AS p"
        " JOIN bucket ON bucket.number = p.bucket WHERE bucket.id = ? AND p.digest = ?",
        (registry_id, digest),
    ).fetchone()
    if row is None:
        return None
    outcome, problem, release, packages, sources, read_ms = row
    inventory = Inventory(
        release, packages, [(name, version) for name, version in orjson.loads(zlib.decompress(sources))]
    )
    return ReadImage(Outcome(outcome), problem, inventory, to_time(read_ms))
