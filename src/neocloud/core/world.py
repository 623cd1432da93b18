"""What rules may look up, backed by the transaction that writes the resource: a core.service.World."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from neocloud.core.registry import ServiceRegistry
from neocloud.core.store.protocol import Resource, Transaction


class StoreWorld:
    def __init__(
        self,
        tx: Transaction,
        now: datetime,
        *,
        inventory: Any = None,
        subject: Any = None,
        provided: ServiceRegistry | None = None,
    ) -> None:
        """Without a `subject` (core.service.Subject) no request is behind it: a reconciler makes a child."""
        self._tx = tx
        self.now = now
        self.inventory = inventory
        self.subject = subject
        self.provided = provided or ServiceRegistry()

    def get(self, resource_id: str) -> Resource | None:
        return self._tx.get(resource_id)

    def find(self, kind: str, parent_id: str, name: str) -> Resource | None:
        return self._tx.find(kind, parent_id, name)

    def list(self, kind: str, parent_id: str | None = None) -> Sequence[Resource]:
        return self._tx.list(kind, parent_id=parent_id)[0]

    def owned(self, owner_id: str) -> Sequence[Resource]:
        return self._tx.owned(owner_id)

    def reservations(self, namespace: str) -> Mapping[str, str]:
        return self._tx.reservations(namespace)

    def reserve(self, namespace: str, value: str, resource_id: str) -> bool:
        return self._tx.reserve(namespace, value, resource_id)

    def release(self, namespace: str, value: str) -> None:
        self._tx.release(namespace, value)
