"""Resources that rules name are looked at when a resource is made, changed or removed, also through mere
records.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from neocloud.core import contract, wire
from neocloud.core.kind import Kind, Rules, enqueue_dependents
from neocloud.core.reconcile import Worker
from neocloud.core.reconcile.reconciler import Context, ReconcileResult, Step
from neocloud.core.store import Resource, Transaction
from tests.fast.core.reconcile.toy_reconcilers import (
    CLUSTER,
    FILESYSTEM,
    KINDS,
    PROJECT,
    Cloud,
    FilesystemReconciler,
)

MAKER, WATCHER = "slurmcluster-maker", "slurmcluster-watcher"
LABEL = "wakes"
RESULT_LABEL = "result-wakes"
NAMESPACE = "places"


class WakesWhomTheLabelNames(Rules):
    def dependents(self, resource: Any) -> Iterable[str]:
        return resource.metadata.labels[LABEL].split(",") if LABEL in resource.metadata.labels else ()


RECONCILED = [replace(kind, rules=WakesWhomTheLabelNames()) for kind in KINDS]
RECORD = Kind(
    message="nebius.vpc.v1.SecurityGroup",
    rpc="nebius.vpc.v1.SecurityGroupService",
    id_prefix="vpcsecuritygroup",
    permission="vpc.securitygroups",
    parent_kinds=("nebius.iam.v1.Container",),
    rules=WakesWhomTheLabelNames(),
)
"""A kind without a reconciler."""
BY_MESSAGE = {kind.message: kind for kind in (*RECONCILED, RECORD)}


class Clusters:
    """Counts looks; the maker owns a file system that wakes the watcher, as large as its label says."""

    kind = CLUSTER

    def __init__(self) -> None:
        self.looks: Counter[str] = Counter()
        self.claimed: dict[str, str | None] = {}

    async def scope(self, context: Context) -> Context:
        self.looks[context.resource.id] += 1
        return context

    def steps(self, scope: Context) -> Sequence[Step]:
        return (Step("Make", self._make),) if scope.resource.id == MAKER else ()

    def delete_steps(self, scope: Context) -> Sequence[Step]:
        return ()

    def status(self, scope: Context, result: ReconcileResult) -> ReconcileResult:
        woken = frozenset(scope.resource.labels.get(RESULT_LABEL, "").split())
        shown = result.with_status(wire.resource_message(scope.resource).status, "READY")
        return replace(shown, wakes=woken)

    async def _make(self, scope: Context) -> None:
        size = int(scope.resource.labels["size"])
        spec = contract.message("nebius.compute.v1.FilesystemSpec")(size_gibibytes=size)
        await scope.ensure_child(
            FILESYSTEM, name="child", parent_id=PROJECT, spec=spec, labels={LABEL: WATCHER}
        )
        self.claimed[scope.resource.id] = await scope.reserve(NAMESPACE, ["a", "b"])


def row(id: str, kind: str = CLUSTER, **values: Any) -> Resource:
    start = values.pop("now")
    finalizers = BY_MESSAGE[kind].finalizers
    return Resource(id, kind, PROJECT, id, start, start, finalizers=finalizers, **values)


@pytest.fixture
def clusters() -> Clusters:
    return Clusters()


@pytest.fixture
async def worker(cloud: Cloud, clusters: Clusters) -> AsyncIterator[Worker]:
    reconcilers = [clusters, FilesystemReconciler(cloud.office)]
    worker = Worker(cloud.store, cloud.clock, reconcilers, kinds=BY_MESSAGE.values())
    running = asyncio.create_task(worker.run())
    yield worker
    running.cancel()
    await asyncio.wait({running})


async def put(cloud: Cloud, worker: Worker, *rows: Resource) -> None:
    """Insert or update, then let everything come to rest."""

    def write(tx: Transaction) -> None:
        for each in rows:
            tx.update(each) if tx.get(each.id) else tx.insert(each)

    await cloud.store.write(write)
    worker.notify()
    await cloud.clock.advance(5)


async def test_a_child_wakes_whom_it_names_when_made_settled_changed_and_gone(
    cloud: Cloud, worker: Worker, clusters: Clusters
) -> None:
    now = cloud.clock.now()
    await put(cloud, worker, row(WATCHER, now=now))
    before = clusters.looks[WATCHER]
    await put(cloud, worker, row(MAKER, now=now, labels={"size": "1"}))
    assert clusters.looks[WATCHER] >= before + 2  # made, and READY by its own reconciler
    before = clusters.looks[WATCHER]
    maker = await cloud.row(MAKER)
    assert maker is not None
    await put(cloud, worker, replace(maker, labels={"size": "2"}))
    assert clusters.looks[WATCHER] > before
    before = clusters.looks[WATCHER]
    maker = await cloud.row(MAKER)
    assert maker is not None
    await put(cloud, worker, replace(maker, deleted_at=cloud.clock.now(), state="DELETING"))
    assert await cloud.row(MAKER) is None
    assert clusters.looks[WATCHER] >= before + 2  # asked to go, and gone
    before = clusters.looks[WATCHER]
    await cloud.clock.advance(60)
    assert clusters.looks[WATCHER] == before


async def test_a_record_passes_the_wake_on(cloud: Cloud, worker: Worker, clusters: Clusters) -> None:
    now = cloud.clock.now()
    first = row("first", RECORD.message, now=now, labels={LABEL: "second,nobody"})
    second = row("second", RECORD.message, now=now, labels={LABEL: f"first,{WATCHER}"})
    await put(cloud, worker, row(WATCHER, now=now), first, second)
    before = clusters.looks[WATCHER]
    assert await cloud.store.write(lambda tx: enqueue_dependents(tx, BY_MESSAGE, [first], cloud.clock.now()))
    worker.notify()
    await cloud.clock.advance(1)
    assert clusters.looks[WATCHER] == before + 1


async def test_a_result_wakes_whom_it_names_whether_or_not_the_status_changed(
    cloud: Cloud, worker: Worker, clusters: Clusters
) -> None:
    now = cloud.clock.now()
    await put(cloud, worker, row(WATCHER, now=now))
    before = clusters.looks[WATCHER]
    await put(cloud, worker, row("slurmcluster-one", now=now, labels={RESULT_LABEL: f"nobody {WATCHER}"}))
    assert clusters.looks[WATCHER] == before + 1
    worker.enqueue("slurmcluster-one")
    await cloud.clock.advance(1)
    assert clusters.looks[WATCHER] == before + 2


async def test_nobody_is_woken_by_what_names_nobody(cloud: Cloud) -> None:
    plain = row(WATCHER, now=cloud.clock.now())
    await cloud.store.write(lambda tx: tx.insert(plain))
    assert not await cloud.store.write(
        lambda tx: enqueue_dependents(tx, BY_MESSAGE, [plain], plain.created_at)
    )


async def test_a_claim_is_kept_pass_after_pass_and_goes_with_its_holder(
    cloud: Cloud, worker: Worker, clusters: Clusters
) -> None:
    await cloud.store.write(lambda tx: tx.reserve(NAMESPACE, "a", "somebody-else"))
    await put(cloud, worker, row(MAKER, now=cloud.clock.now(), labels={"size": "1"}))
    assert clusters.claimed[MAKER] == "b"
    await cloud.store.write(lambda tx: tx.release(NAMESPACE, "a"))
    worker.enqueue(MAKER)
    await cloud.clock.advance(1)
    assert clusters.claimed[MAKER] == "b"
    maker = await cloud.row(MAKER)
    assert maker is not None
    await put(cloud, worker, replace(maker, deleted_at=cloud.clock.now(), state="DELETING"))
    assert await cloud.store.read(lambda tx: dict(tx.reservations(NAMESPACE))) == {}
