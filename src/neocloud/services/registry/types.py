"""Registries of container images: the kind, states, permissions, what is stored beside a registry. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from neocloud.core import contract, wire
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.registry.v1 import Artifact
from neocloud.messages.neocloud.registry.v1 import VulnerabilityReport
from neocloud.messages.neocloud.storage.v1 import GatewayBucket
from neocloud.services.iam.types import tenant_of

REGISTRY = "nebius.registry.v1.Registry"
REGISTRY_ID_PREFIX = "registry"
REGISTRY_SERVICE = "nebius.registry.v1.RegistryService"
ARTIFACT_SERVICE = "nebius.registry.v1.ArtifactService"
REPORT_SERVICE = "neocloud.registry.v1.VulnerabilityReportService"
IMAGE_PERMISSIONS = tuple(f"registry.images.{verb}" for verb in ("pull", "push", "delete"))
"""The permissions that the object gateway checks, each on the registry."""
MAX_REMOVALS = 1000
"""Images of one registry that are being removed."""
_REMOVALS = "removals"
_NOTED = "noted-removals"
KEEP_LAST, UNTAGGED_DAYS = "keep-last", "untagged-days"
"""The labels that are rules: which images the gateway removes by itself."""
RULE_LABELS = (KEEP_LAST, UNTAGGED_DAYS)
SPARSE_LABEL, ALLOWED = "sparse-manifests", "allowed"
"""The label with which manifests may name what the registry does not have."""
MAX_RULE = 10_000
_NUMBER = re.compile(r"[1-9][0-9]{0,4}")
Mode = GatewayBucket.Mode


class RegistryState(StrEnum):
    """The states of a registry."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


class StoredArtifact(Protocol):
    """An image or a part of one."""

    @property
    def registry_id(self) -> str: ...
    @property
    def artifact(self) -> Artifact: ...
    @property
    def is_in_index(self) -> bool:
        """Return whether an index names it, so that it cannot be removed alone."""
        ...


class Artifacts(Protocol):
    """The images of all registries, as the object gateway has them. Its methods block."""

    def find(self, artifact_id: str) -> StoredArtifact | None: ...

    def page(self, registry_id: str, after: int, limit: int) -> tuple[Sequence[StoredArtifact], int]:
        """Return artifacts in the order of their first push, and the `after` of the next page; 0: no more."""
        ...

    def image_count(self, registry_id: str) -> int: ...


class VulnerabilityReports(Protocol):
    """The interface of vulnerability reports of images. Its method blocks."""

    def report(self, artifact_id: str) -> VulnerabilityReport:
        """Return what is known now of an artifact that is there."""
        ...


@dataclass(frozen=True)
class Removal:
    """The request to remove an image."""

    artifact_id: str
    requested_at: datetime
    generation: int
    """The generation of the registry; once the gateway has applied it, the image is removed."""


def read_removals(tx: Transaction, registry_id: str) -> tuple[Removal, ...]:
    raw = tx.secret(registry_id, _REMOVALS)
    return tuple(Removal(id, datetime.fromisoformat(at), to) for id, at, to in json.loads(raw)) if raw else ()


def write_removals(tx: Transaction, registry_id: str, removals: Sequence[Removal]) -> None:
    content = [(each.artifact_id, each.requested_at.isoformat(), each.generation) for each in removals]
    tx.put_secret(registry_id, _REMOVALS, json.dumps(content).encode() if content else b"")


def rule_of(labels: Mapping[str, str], label: str) -> int | None:
    """Return the number in a label, 0 where there is no such label, and None where no rule takes it."""
    text = labels.get(label)
    if text is None:
        return 0
    number = int(text) if _NUMBER.fullmatch(text) else 0
    return number if 0 < number <= MAX_RULE else None


def noted_removals(tx: Transaction, registry_id: str) -> int:
    """Return how many images that rules removed the audit log has."""
    return int(tx.secret(registry_id, _NOTED) or b"0")


def write_noted_removals(tx: Transaction, registry_id: str, total: int) -> None:
    tx.put_secret(registry_id, _NOTED, str(total).encode())


def gateway_bucket(tx: Transaction, row: Resource) -> GatewayBucket:
    """Return what the gateway has to keep of a registry."""
    found = GatewayBucket(
        id=row.id,
        name=row.name,
        project_id=row.parent_id,
        tenant_id=tenant_of(row.parent_id, tx.get) or "",
        generation=row.resource_version,
        mode=Mode.Value("PURGE" if row.deleted_at is not None else "SERVE"),
        created_at=contract.timestamp(row.created_at),
        is_registry=True,
    )
    found.image_rules.keep_last = rule_of(row.labels, KEEP_LAST) or 0
    found.image_rules.untagged_days = rule_of(row.labels, UNTAGGED_DAYS) or 0
    found.image_rules.allows_sparse = row.labels.get(SPARSE_LABEL) == ALLOWED
    for each in read_removals(tx, row.id):
        found.removed_artifacts.add(id=each.artifact_id, requested_at=contract.timestamp(each.requested_at))
    return found


def mark_for_deletion(tx: Transaction, row: Resource, now: datetime) -> Resource:
    """Let the gateway remove the registry with all that it holds, and then the reconciler its row."""
    status = wire.with_state(row.kind, row.status, RegistryState.DELETING)
    marked = replace(row, deleted_at=now, updated_at=now, state=RegistryState.DELETING, status=status)
    tx.update(marked)
    return marked


def address(endpoint: str, registry_id: str) -> str:
    """Return how the names of the images of a registry begin."""
    return f"{endpoint}/{registry_id.partition('-')[2]}" if endpoint else ""
