"""The `Context` of a run: what it may read and write besides its engine.

Each call is one transaction. A writing one checks the lease first: a worker that lost its lease must not
create children beside its successor.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import tee
from typing import TypeVar

from google.protobuf.message import Message

from neocloud.core import wire
from neocloud.core.clock import Clock
from neocloud.core.contract import ApiError, Code
from neocloud.core.kind import Kind, enqueue_dependents, mark_for_deletion
from neocloud.core.readers import TransactionReader
from neocloud.core.reconcile.reconciler import Failed, RetryLater
from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import Lease, Resource, Store, Transaction

Result = TypeVar("Result")

REFUSED = "Refused"
"""The reason of a resource whose children are refused, e.g. by a quota; stable, for programs."""

_SINGLE_TRIES = 32
"""How many candidates to try one by one before all reservations of the namespace are read once."""


@dataclass(frozen=True)
class WorkerContext:
    """The data that all runs of a worker share."""

    store: Store
    clock: Clock
    kinds: Mapping[str, Kind]
    new_id: Callable[[str], str]
    notify: Callable[[], None]
    """Call it after a transaction that made other resources due."""
    lease_seconds: float = 10.0
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """Why resources wait or have failed, as last logged, by id."""
    on_result: Callable[[str, str, float], None] = lambda kind, result, seconds: None
    """Called with the kind, the result in one word and the duration of each run."""


class RunContext:
    """The `Context` of one resource under one lease."""

    def __init__(self, worker: WorkerContext, resource: Resource, lease: Lease) -> None:
        self.resource = resource
        self.now: datetime = worker.clock.now()
        self._lease = lease
        self._worker = worker

    async def get(self, resource_id: str) -> Resource | None:
        return await self._worker.store.read(lambda tx: tx.get(resource_id))

    async def find(self, kind: str, parent_id: str, name: str) -> Resource | None:
        return await self._worker.store.read(lambda tx: tx.find(kind, parent_id, name))

    async def list(self, kind: str, parent_id: str | None = None) -> Sequence[Resource]:
        return await self._worker.store.read(lambda tx: tx.list(kind, parent_id=parent_id)[0])

    async def children(self, resource_id: str) -> Sequence[Resource]:
        return await self._worker.store.read(lambda tx: tx.children(resource_id))

    async def reserve(self, namespace: str, candidates: Iterable[str]) -> str | None:
        source = iter(candidates)

        def take(tx: Transaction) -> str | None:
            nonlocal source
            source, tried = tee(source)  # the transaction may be run again, from the first candidate on
            self._check_lease(tx)
            held = tx.held_by(self.resource.id)
            mine = next((value for in_space, value in held if in_space == namespace), None)
            return mine if mine is not None else self._first_free(tx, namespace, tried)

        return await self._worker.store.write(take)

    def _first_free(self, tx: Transaction, namespace: str, candidates: Iterable[str]) -> str | None:
        """The key of the reservations decides, not what was read before: no two get one value."""
        taken: Container[str] = ()
        for number, value in enumerate(candidates):
            if number == _SINGLE_TRIES:
                taken = tx.reservations(namespace)
            if value not in taken and tx.reserve(namespace, value, self.resource.id):
                return value
        return None

    async def reservations(self, namespace: str) -> Mapping[str, str]:
        return await self._worker.store.read(lambda tx: tx.reservations(namespace))

    async def release(self, namespace: str, value: str) -> None:
        def release(tx: Transaction) -> None:
            self._check_lease(tx)
            if (namespace, value) in tx.held_by(self.resource.id):
                tx.release(namespace, value)

        await self._worker.store.write(release)

    async def ensure_child(
        self, kind: str, *, name: str, parent_id: str, spec: Message, labels: dict[str, str]
    ) -> Resource:
        known = await self.find(kind, parent_id, name)
        if known is not None and self._is_up_to_date(known, spec, labels):
            return known

        def ensure(tx: Transaction) -> Resource:
            self._check_lease(tx)
            old = tx.find(kind, parent_id, name)
            if old is None:
                child = self._completed(tx, self._new_child(kind, name, parent_id, spec, labels), None)
                tx.insert(child)
                self._enqueue_dependents(tx, child)
                return child
            if self._is_up_to_date(old, spec, labels):
                return old
            changed = self._completed(tx, self._changed(old, spec, labels), old)
            tx.update(changed)
            self._enqueue_dependents(tx, old, changed)
            return changed

        return await self._change_others(ensure)

    async def delete_child(self, resource_id: str) -> None:
        def mark(tx: Transaction) -> None:
            self._check_lease(tx)
            child = tx.get(resource_id)
            if child is not None and child.owner_id == self.resource.id:
                mark_for_deletion(tx, self._worker.kinds, child, self._worker.clock.now())

        await self._change_others(mark)

    async def delete_owned(self) -> bool:
        owned = await self._worker.store.read(lambda tx: tx.owned(self.resource.id))
        if all(child.deleted_at is not None for child in owned):
            return not owned

        def mark(tx: Transaction) -> bool:
            self._check_lease(tx)
            for child in tx.owned(self.resource.id):
                mark_for_deletion(tx, self._worker.kinds, child, self._worker.clock.now())
            return not tx.owned(self.resource.id)

        return await self._change_others(mark)

    async def secret(self, name: str, make: Callable[[], bytes]) -> bytes:
        known = await self._worker.store.read(lambda tx: tx.secret(self.resource.id, name))
        if known is not None:
            return known
        fresh = make()

        def keep(tx: Transaction) -> bytes:
            self._check_lease(tx)
            held = tx.secret(self.resource.id, name)
            if held is not None:
                return held
            tx.put_secret(self.resource.id, name, fresh)
            return fresh

        return await self._worker.store.write(keep)

    async def append_events(
        self, log: str, events: Sequence[LogEvent], claim: Callable[[Transaction], None] | None = None
    ) -> None:
        def append(tx: Transaction) -> None:
            self._check_lease(tx)
            if claim is not None:
                claim(tx)
            for event in events:
                tx.append_event(log, event)

        await self._worker.store.write(append)

    async def _change_others(self, work: Callable[[Transaction], Result]) -> Result:
        try:
            result = await self._worker.store.write(work)
        except ApiError as refusal:  # a quota does not allow the change
            raise Failed(REFUSED, refusal.message, code=refusal.code) from refusal
        self._worker.notify()
        return result

    def _enqueue_dependents(self, tx: Transaction, *rows: Resource) -> None:
        enqueue_dependents(tx, self._worker.kinds, rows, self._worker.clock.now())

    def _check_lease(self, tx: Transaction) -> None:
        tx.check_lease(self._lease)

    def _new_child(
        self, kind: str, name: str, parent_id: str, spec: Message, labels: Mapping[str, str]
    ) -> Resource:
        known = self._worker.kinds[kind]
        now = self._worker.clock.now()
        return Resource(
            id=self._worker.new_id(known.id_prefix),
            kind=kind,
            parent_id=parent_id,
            name=name,
            created_at=now,
            updated_at=now,
            labels=dict(labels),
            spec=spec.SerializeToString(deterministic=True),
            status=wire.with_state(kind, b"", known.initial_state),
            state=known.initial_state,
            owner_id=self.resource.id,
            finalizers=known.finalizers,
        )

    def _completed(self, tx: Transaction, child: Resource, old: Resource | None) -> Resource:
        try:
            reader = TransactionReader(tx, self._worker.clock.now())
            return self._worker.kinds[child.kind].completed(child, old, reader)
        except ApiError as refusal:
            code = refusal.code if refusal.code == Code.RESOURCE_EXHAUSTED else Code.FAILED_PRECONDITION
            raise Failed(_reason(refusal), refusal.message, code=code) from refusal

    def _changed(self, child: Resource, spec: Message, labels: Mapping[str, str]) -> Resource:
        is_new_spec = type(spec).FromString(child.spec) != spec
        return replace(
            child,
            spec=spec.SerializeToString(deterministic=True),
            labels=dict(labels),
            updated_at=self._worker.clock.now(),
            resource_version=child.resource_version + is_new_spec,
        )

    def _is_up_to_date(self, child: Resource, spec: Message, labels: Mapping[str, str]) -> bool:
        if child.owner_id != self.resource.id:
            raise Failed(
                "NameTaken",
                f"The name {child.name!r} is taken by {child.id}, which belongs to something else. "
                "Rename or delete that one.",
            )
        if child.deleted_at is not None:
            raise RetryLater(f"{child.id} ({child.name}) of an earlier spec is still being deleted")
        return dict(child.labels) == dict(labels) and type(spec).FromString(child.spec) == spec


def _reason(refusal: ApiError) -> str:
    """ "NotEnoughResources" for not_enough_resources."""
    code = next((detail.code for detail in refusal.details if detail.code), "refused")
    return "".join(word.capitalize() for word in code.split("_"))
