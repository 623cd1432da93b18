"""What bricks put into a new resource of another brick's kind: a project starts with a network.

A seed runs in the transaction that makes the resource, and once for each that is there at the start. It keeps
no wish: what a user deletes of it stays deleted.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from neocloud.core.service import Seed, Service
from neocloud.core.store.protocol import Resource, Store, Transaction

SPACE = "seeds"
"""A resource's claims in "seeds/<its id>" are the services whose seeds were sown."""

Seeds = Mapping[str, tuple[tuple[str, Seed], ...]]
"""By kind: name of the service and what it sows."""


def seeds_of(services: Iterable[Service]) -> Seeds:
    found: dict[str, tuple[tuple[str, Seed], ...]] = {}
    for service in services:
        for kind, seed in service.seeds.items():
            found[kind] = (*found.get(kind, ()), (service.name, seed))
    return found


def sow(tx: Transaction, seeds: Seeds, row: Resource, now: datetime, settings: Any) -> None:
    """Run what has not been run for this resource yet."""
    for name, seed in seeds.get(row.kind, ()):
        if name not in tx.reservations(f"{SPACE}/{row.id}"):
            tx.reserve(f"{SPACE}/{row.id}", name, row.id)
            seed(tx, row, now, settings)


async def sow_all(store: Store, services: Iterable[Service], now: datetime, settings: Any) -> None:
    """For resources of a time before the brick was there, and for those that were made past the server."""
    seeds = seeds_of(services)

    def work(tx: Transaction) -> None:
        for kind in seeds:
            for row in tx.list(kind)[0]:
                if row.deleted_at is None:
                    sow(tx, seeds, row, now, settings)

    await store.write(work)
