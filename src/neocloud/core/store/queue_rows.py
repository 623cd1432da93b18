"""The queue in a transaction: who is due, who holds which lease, and giving a lease back with its result.

A row without a lease is due when `due_at` has come. Taking a lease clears `due_at`, so that a wish to look
again (`enqueue`) which comes during the lease is told apart and survives the giving back. A leased row is due
when its lease has run out: its holder is dead.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import and_, bindparam, func, or_, select, update

from neocloud.core.store.protocol import Lease, LeaseLost
from neocloud.core.store.resource_rows import ResourceRows
from neocloud.core.store.rows import from_micros_or_none, to_micros, to_micros_or_none
from neocloud.core.store.tables import queue

_c = queue.c
_IS_FREE = _c.lease_token == ""
_OF_KINDS = _c.kind.in_(bindparam("kinds", expanding=True))
_IS_DUE = or_(
    and_(_IS_FREE, _c.due_at <= bindparam("now")),
    and_(_c.lease_until <= bindparam("now"), _c.lease_until.is_not(None)),
)
_DUE = (
    select(_c.resource_id)
    .where(_OF_KINDS, _IS_DUE)
    .order_by(func.coalesce(_c.due_at, _c.lease_until), _c.resource_id)
    .limit(bindparam("count"))
)
_NEXT_DUE = select(func.min(_c.due_at)).where(_OF_KINDS, _IS_FREE)
_NEXT_EXPIRY = select(func.min(_c.lease_until)).where(_OF_KINDS, _c.lease_until.is_not(None))
_ROW = select(_c.due_at, _c.lease_token, _c.attempts).where(_c.resource_id == bindparam("id"))
_LEASE = (
    update(queue)
    .where(_c.resource_id == bindparam("id"), _IS_DUE)
    .values(lease_token=bindparam("token"), lease_until=bindparam("until"), due_at=None)
)
_RENEW = (
    update(queue)
    .where(_c.resource_id == bindparam("id"), _c.lease_token == bindparam("token"))
    .values(lease_until=bindparam("until"))
)
_GIVE_BACK = (
    update(queue)
    .where(_c.resource_id == bindparam("id"))
    .values(lease_token="", lease_until=None, due_at=bindparam("due"), attempts=bindparam("tries"))
)
_CLEAR_LEASES = (
    update(queue).where(_OF_KINDS, ~_IS_FREE).values(lease_token="", lease_until=None, due_at=bindparam("at"))
)
_WAKE_ALL = (
    update(queue)
    .where(_OF_KINDS, _c.due_at.is_(None) | (_c.due_at > bindparam("at")))
    .values(due_at=bindparam("at"))
)


class QueueRows(ResourceRows):
    def due(self, kinds: Sequence[str], now: datetime, limit: int) -> Sequence[str]:
        values = {"kinds": list(kinds), "now": to_micros(now), "count": limit}
        return [row.resource_id for row in self._all(_DUE, values)]

    def next_due(self, kinds: Sequence[str]) -> datetime | None:
        values = {"kinds": list(kinds)}
        times = (self._one(_NEXT_DUE, values)[0], self._one(_NEXT_EXPIRY, values)[0])
        return from_micros_or_none(min((at for at in times if at is not None), default=None))

    def lease(self, resource_id: str, token: str, now: datetime, until: datetime) -> Lease | None:
        values = {"id": resource_id, "token": token, "now": to_micros(now), "until": to_micros(until)}
        if not self._do(_LEASE, values):
            return None
        row = self._one(_ROW, {"id": resource_id})
        return Lease(resource_id, token, until, row.attempts)

    def commit_result(
        self,
        lease: Lease,
        *,
        status: bytes | None,
        state: str | None,
        observed_version: int | None,
        finalizers: tuple[str, ...] | None,
        due_at: datetime | None,
        attempts: int,
        now: datetime,
    ) -> None:
        woken_at = self._held(lease)
        due = min((at for at in (woken_at, to_micros_or_none(due_at)) if at is not None), default=None)
        self._do(_GIVE_BACK, {"id": lease.resource_id, "due": due, "tries": attempts})
        old = self.get(lease.resource_id)
        if old is None:
            raise LeaseLost(f"{lease.resource_id} does not exist any more.")
        new = replace(
            old,
            status=old.status if status is None else status,
            state=old.state if state is None else state,
            observed_version=old.observed_version if observed_version is None else observed_version,
            finalizers=old.finalizers if finalizers is None else finalizers,
        )
        if new != old:
            self._replace(old, new, now)

    def renew(self, lease: Lease, until: datetime) -> Lease:
        values = {"id": lease.resource_id, "token": lease.token, "until": to_micros(until)}
        if not self._do(_RENEW, values):
            raise LeaseLost(f"The lease on {lease.resource_id} was lost to another worker.")
        return replace(lease, until=until)

    def check_lease(self, lease: Lease) -> None:
        self._held(lease)

    def clear_leases(self, kinds: Sequence[str]) -> int:
        return self._do(_CLEAR_LEASES, {"kinds": list(kinds), "at": to_micros(self._clock.now())})

    def enqueue_all(self, kinds: Sequence[str], at: datetime) -> int:
        return self._do(_WAKE_ALL, {"kinds": list(kinds), "at": to_micros(at)})

    def _held(self, lease: Lease) -> int | None:
        """When the resource was woken during this lease, in microseconds."""
        row = self._one(_ROW, {"id": lease.resource_id})
        if row is None or row.lease_token != lease.token:
            raise LeaseLost(f"The lease on {lease.resource_id} was lost to another worker.")
        return row.due_at
