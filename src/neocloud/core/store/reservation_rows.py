"""Reservations in a transaction: a value in a namespace belongs to one resource until that is deleted.

The primary key decides between two that race for a value, whichever database and however many writers.
"""

from collections.abc import Mapping, Set

from sqlalchemy import bindparam, delete, select

from neocloud.core.store.session import Session, insert_new
from neocloud.core.store.tables import claims

_c = claims.c
_CLAIM = insert_new(claims)
_HOLDER = select(_c.resource_id).where(_c.space == bindparam("space"), _c.value == bindparam("value"))
_CLAIMS = select(_c.value, _c.resource_id).where(_c.space == bindparam("space")).order_by(_c.value)
_HELD = select(_c.space, _c.value).where(_c.resource_id == bindparam("resource_id"))
_RELEASE = delete(claims).where(_c.space == bindparam("space"), _c.value == bindparam("value"))


class ReservationRows(Session):
    def reserve(self, namespace: str, value: str, resource_id: str) -> bool:
        if self._insert_new(_CLAIM, {"space": namespace, "value": value, "resource_id": resource_id}):
            return True
        row = self._row(_HOLDER, {"space": namespace, "value": value})
        return row is not None and row[0] == resource_id

    def reservations(self, namespace: str) -> Mapping[str, str]:
        return {row.value: row.resource_id for row in self._all(_CLAIMS, {"space": namespace})}

    def held_by(self, resource_id: str) -> Set[tuple[str, str]]:
        return {(row.space, row.value) for row in self._all(_HELD, {"resource_id": resource_id})}

    def release(self, namespace: str, value: str) -> None:
        self._do(_RELEASE, {"space": namespace, "value": value})
