"""What the worker gives to a pass: the `Context` of one resource under one lease.

Each call is one transaction. Those that write check the lease first: a worker that was taken for dead must
not make children beside its successor.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import tee
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from neocloud.core import wire
from neocloud.core.clock import Clock
from neocloud.core.contract import ApiError, Code
from neocloud.core.reconcile import deletion
from neocloud.core.reconcile.dependents import enqueue_dependents
from neocloud.core.reconcile.reconciler import Failed, RetryLater
from neocloud.core.store.protocol import Lease, Resource, Store, Transaction
from neocloud.core.world import StoreWorld

Result = TypeVar("Result")

REFUSED = "Refused"
"""The reason of a resource whose parts the cloud does not allow; stable, for programs."""

_BLIND_TRIES = 32
"""How many candidates to claim without looking, before all that others hold in the namespace is read once."""


class ChildKind(Protocol):
    """What has to be known of a kind to make or delete a resource of it. `core.service.Kind` fits."""

    @property
    def message(self) -> str: ...

    @property
    def id_prefix(self) -> str: ...

    @property
    def initial_state(self) -> str: ...

    @property
    def deleting_state(self) -> str: ...

    @property
    def finalizers(self) -> tuple[str, ...]: ...

    def dependents(self, row: Resource) -> Iterable[str]: ...

    def completed(self, row: Resource, old: Resource | None, world: Any) -> Resource: ...


@dataclass(frozen=True)
class WorkerContext:
    """What all passes of a worker share."""

    store: Store
    clock: Clock
    kinds: Mapping[str, ChildKind]
    new_id: Callable[[str], str]
    notify: Callable[[], None]
    """To be called after a transaction that made other resources due."""


class RunContext:
    """The `Context` of one pass."""

    def __init__(self, surroundings: WorkerContext, resource: Resource, lease: Lease) -> None:
        self.resource = resource
        self.now: datetime = surroundings.clock.now()
        self._lease = lease
        self._around = surroundings

    async def get(self, resource_id: str) -> Resource | None:
        return await self._around.store.read(lambda tx: tx.get(resource_id))

    async def find(self, kind: str, parent_id: str, name: str) -> Resource | None:
        return await self._around.store.read(lambda tx: tx.find(kind, parent_id, name))

    async def list(self, kind: str, parent_id: str | None = None) -> Sequence[Resource]:
        return await self._around.store.read(lambda tx: tx.list(kind, parent_id=parent_id)[0])

    async def children(self, resource_id: str) -> Sequence[Resource]:
        return await self._around.store.read(lambda tx: tx.children(resource_id))

    async def reserve(self, namespace: str, candidates: Iterable[str]) -> str | None:
        source = iter(candidates)

        def take(tx: Transaction) -> str | None:
            nonlocal source
            source, tried = tee(source)  # the transaction may be run again, from the first candidate on
            self._check_lease(tx)
            held = tx.held_by(self.resource.id)
            mine = next((value for in_space, value in held if in_space == namespace), None)
            return mine if mine is not None else self._first_free(tx, namespace, tried)

        return await self._around.store.write(take)

    def _first_free(self, tx: Transaction, namespace: str, candidates: Iterable[str]) -> str | None:
        """The key of the claims decides, not what was read before: no two get one value."""
        taken: Container[str] = ()
        for number, value in enumerate(candidates):
            if number == _BLIND_TRIES:
                taken = tx.reservations(namespace)
            if value not in taken and tx.reserve(namespace, value, self.resource.id):
                return value
        return None

    async def reservations(self, namespace: str) -> Mapping[str, str]:
        return await self._around.store.read(lambda tx: tx.reservations(namespace))

    async def release(self, namespace: str, value: str) -> None:
        def give_back(tx: Transaction) -> None:
            self._check_lease(tx)
            if (namespace, value) in tx.held_by(self.resource.id):
                tx.release(namespace, value)

        await self._around.store.write(give_back)

    async def ensure_child(
        self, kind: str, *, name: str, parent_id: str, spec: Message, labels: dict[str, str]
    ) -> Resource:
        child = await self.find(kind, parent_id, name)
        if child is not None and self._is_as_wished(child, spec, labels):
            return child

        def ensure(tx: Transaction) -> Resource:
            self._check_lease(tx)
            found = tx.find(kind, parent_id, name)
            if found is None:
                child = self._new_child(kind, name, parent_id, spec, labels)
                born = self._completed(tx, child, None)
                tx.insert(born)
                self._enqueue_dependents(tx, born)
                return born
            if self._is_as_wished(found, spec, labels):
                return found
            changed = self._completed(tx, self._changed(found, spec, labels), found)
            tx.update(changed)
            self._enqueue_dependents(tx, found, changed)
            return changed

        return await self._change_others(ensure)

    async def delete_child(self, resource_id: str) -> None:
        def ask(tx: Transaction) -> None:
            self._check_lease(tx)
            child = tx.get(resource_id)
            if child is not None and child.owner_id == self.resource.id:
                deletion.mark_for_deletion(tx, self._around.kinds, child, self._around.clock.now())

        await self._change_others(ask)

    async def delete_owned(self) -> bool:
        owned = await self._around.store.read(lambda tx: tx.owned(self.resource.id))
        if all(child.deleted_at is not None for child in owned):
            return not owned

        def ask(tx: Transaction) -> bool:
            self._check_lease(tx)
            for child in tx.owned(self.resource.id):
                deletion.mark_for_deletion(tx, self._around.kinds, child, self._around.clock.now())
            return not tx.owned(self.resource.id)

        return await self._change_others(ask)

    async def secret(self, name: str, make: Callable[[], bytes]) -> bytes:
        known = await self._around.store.read(lambda tx: tx.secret(self.resource.id, name))
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

        return await self._around.store.write(keep)

    async def _change_others(self, work: Callable[[Transaction], Result]) -> Result:
        try:
            result = await self._around.store.write(work)
        except ApiError as refusal:  # a quota has no room for the change
            raise Failed(REFUSED, refusal.message, code=refusal.code) from refusal
        self._around.notify()
        return result

    def _enqueue_dependents(self, tx: Transaction, *rows: Resource) -> None:
        enqueue_dependents(tx, self._around.kinds, rows, self._around.clock.now())

    def _check_lease(self, tx: Transaction) -> None:
        tx.check_lease(self._lease)

    def _new_child(
        self, kind: str, name: str, parent_id: str, spec: Message, labels: Mapping[str, str]
    ) -> Resource:
        known = self._around.kinds[kind]
        now = self._around.clock.now()
        return Resource(
            id=self._around.new_id(known.id_prefix),
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
            world = StoreWorld(tx, self._around.clock.now())
            return self._around.kinds[child.kind].completed(child, old, world)
        except ApiError as refusal:
            code = refusal.code if refusal.code == Code.RESOURCE_EXHAUSTED else Code.FAILED_PRECONDITION
            raise Failed(_reason(refusal), refusal.message, code=code) from refusal

    def _changed(self, child: Resource, spec: Message, labels: Mapping[str, str]) -> Resource:
        is_new_spec = type(spec).FromString(child.spec) != spec
        return replace(
            child,
            spec=spec.SerializeToString(deterministic=True),
            labels=dict(labels),
            updated_at=self._around.clock.now(),
            resource_version=child.resource_version + is_new_spec,
        )

    def _is_as_wished(self, child: Resource, spec: Message, labels: Mapping[str, str]) -> bool:
        if child.owner_id != self.resource.id:
            raise Failed(
                "NameTaken",
                f"The name {child.name!r} is taken by {child.id}, which belongs to something else. "
                "Rename or delete that one.",
            )
        if child.deleted_at is not None:
            raise RetryLater(f"{child.id} ({child.name}) of an earlier wish is still being deleted")
        return dict(child.labels) == dict(labels) and type(spec).FromString(child.spec) == spec


def _reason(refusal: ApiError) -> str:
    """ "NotEnoughResources" for not_enough_resources."""
    code = next((detail.code for detail in refusal.details if detail.code), "refused")
    return "".join(word.capitalize() for word in code.split("_"))
