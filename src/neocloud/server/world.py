"""What a brick's rules may look up, backed by the transaction that writes the resource."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from neocloud.core.service import Subject
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.server.inbound import Inbound
from neocloud.server.runtime import Runtime


class TransactionWorld:
    """Implements core.service.World."""

    def __init__(self, tx: Transaction, runtime: Runtime, inbound: Inbound, now: datetime) -> None:
        self._tx = tx
        self.now = now
        self.inventory: Any = runtime.inventory()
        self.subject: Subject | None = inbound.subject

    def get(self, resource_id: str) -> Resource | None:
        return self._tx.get(resource_id)

    def find(self, kind: str, parent_id: str, name: str) -> Resource | None:
        return self._tx.find(kind, parent_id, name)

    def list(self, kind: str, parent_id: str | None = None) -> Sequence[Resource]:
        return self._tx.list(kind, parent_id=parent_id)[0]

    def claims(self, space: str) -> Mapping[str, str]:
        return self._tx.claims(space)

    def claim(self, space: str, value: str, resource_id: str) -> bool:
        return self._tx.claim(space, value, resource_id)

    def release(self, space: str, value: str) -> None:
        self._tx.release(space, value)
