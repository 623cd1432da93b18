"""A cluster message to start from, and a World that needs no database."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from neocloud.messages.neocloud.slurm.v1 import Cluster

from neocloud.core.readers import ServiceRegistry
from neocloud.core.store.protocol import Resource
from neocloud.core.usage import CapacityUses
from neocloud.engines.base import Capabilities
from neocloud.services.slurm.rules import CAPACITY


def public_key() -> str:
    key = Ed25519PrivateKey.generate().public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


@dataclass
class PlainWorld:
    rows: list[Resource] = field(default_factory=list)
    inventory: Capabilities = field(
        default_factory=lambda: Capabilities("fake", "1", cpus=8, memory_mib=64 * 1024)
    )
    now: datetime = datetime(2026, 11, 1, tzinfo=UTC)
    subject: None = None
    provided: ServiceRegistry = field(
        default_factory=lambda: ServiceRegistry().add(CapacityUses, CapacityUses(CAPACITY))
    )

    def get(self, resource_id: str) -> Resource | None:
        return next((row for row in self.rows if row.id == resource_id), None)

    def list(self, kind: str, parent_id: str | None = None) -> list[Resource]:
        return [row for row in self.rows if row.kind == kind]


@pytest.fixture
def world() -> PlainWorld:
    return PlainWorld()


@pytest.fixture
def cluster():
    message = Cluster()
    message.metadata.id = "slurmcluster-e00bank"
    message.metadata.parent_id = "project-e00one"
    message.metadata.name = "bank"
    message.spec.node_sets.add(name="worker", platform="cpu-local", preset="1vcpu-4gb", count=2)
    message.spec.login.ssh_public_keys.append(public_key() + " anna@bank")
    return message
