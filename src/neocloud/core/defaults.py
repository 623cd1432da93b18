# pyright: strict
"""Default resources that services create in new resources of others: a project starts with a network.

They are created in the transaction that creates the resource, and once for each resource that is there when
the server starts. They carry no desired state: what a user deletes of them stays deleted.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from neocloud.core.service import CreateDefaults, Service
from neocloud.core.store.protocol import Resource, Store, Transaction

if TYPE_CHECKING:
    from neocloud.control_plane.settings import Settings

NAMESPACE = "seeds"
"""The reservations of a resource in "seeds/<its id>" are the services that have created their defaults in it.
Stored: the name stays."""

Defaults = Mapping[str, tuple[tuple[str, CreateDefaults], ...]]
"""By kind: the name of each service and what creates its defaults."""


def defaults_of(services: Iterable[Service]) -> Defaults:
    found: dict[str, tuple[tuple[str, CreateDefaults], ...]] = {}
    for service in services:
        for kind, create in service.defaults.items():
            found[kind] = (*found.get(kind, ()), (service.name, create))
    return found


def create_defaults(
    tx: Transaction, defaults: Defaults, row: Resource, now: datetime, settings: "Settings"
) -> None:
    """Create those that have not been created in this resource yet."""
    for name, create in defaults.get(row.kind, ()):
        if name not in tx.reservations(f"{NAMESPACE}/{row.id}"):
            tx.reserve(f"{NAMESPACE}/{row.id}", name, row.id)
            create(tx, row, now, settings)


async def backfill_defaults(
    store: Store, services: Iterable[Service], now: datetime, settings: "Settings"
) -> None:
    """Create defaults in resources that are older than the service, or were created without the server."""
    defaults = defaults_of(services)

    def work(tx: Transaction) -> None:
        for kind in defaults:
            for row in tx.list(kind)[0]:
                if row.deleted_at is None:
                    create_defaults(tx, defaults, row, now, settings)

    await store.write(work)
