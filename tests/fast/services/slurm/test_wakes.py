"""A cluster where nothing is under way looks each minute only. What concerns it wakes it, and what was not
told is found by that look."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec

from neocloud.core.clock import SystemClock
from neocloud.core.reconcile.reconciler import IDLE_RESYNC_SECONDS
from neocloud.core.service import waking
from neocloud.core.store import Resource, Store, Transaction, open_store
from neocloud.engines.base import Reference
from neocloud.services.compute.types import FILESYSTEM, attachment_namespace
from neocloud.services.iam.types import SERVICE_ACCOUNT
from neocloud.services.slurm import SERVICE, controller_logs
from neocloud.services.slurm.reconcile import status
from neocloud.services.slurm.types import CLUSTER
from neocloud.testing.waiting import until
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud

MINUTE_AGO = datetime.now(UTC) - timedelta(minutes=1)


@pytest.fixture
async def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeCloud]:
    monkeypatch.setattr(controller_logs, "CLUSTER_SECONDS", 0.2)
    async with fake_cloud(tmp_path) as running:
        yield running


async def seconds_to_look(cloud: FakeCloud) -> float:
    due_at = await cloud.running.store.read(lambda tx: tx.next_due([CLUSTER]))
    return (due_at - datetime.now(UTC)).total_seconds() if due_at else float("inf")


async def is_at_rest(cloud: FakeCloud) -> bool:
    return await seconds_to_look(cloud) > IDLE_RESYNC_SECONDS / 2


async def test_a_line_of_the_controllers_log_wakes_a_cluster_at_rest(cloud: FakeCloud) -> None:
    """An administrator has drained a worker: the cluster shows it at once, and not after a minute."""
    cluster = await cloud.create_cluster(count=1)
    await until(lambda: is_at_rest(cloud), seconds=20)
    controller = Reference("Pod", cluster.metadata.id, "controller-0")
    slurm = cloud.slurm.connect(cloud.world.addresses[controller], b"")
    await slurm.set_node_state("worker-0", "DRAIN", "bad fan")
    cloud.engine.write_log(
        controller, "controller", "slurmctld: update_node: node worker-0 state set to DRAINED"
    )
    seen = await cloud.when(cluster.metadata.id, lambda seen: seen.status.nodes[0].reason == "bad fan")
    assert "DRAIN" in seen.status.nodes[0].slurm_state


async def test_a_loss_that_no_event_told_is_found(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await cloud.create_cluster(count=1)
    await until(lambda: is_at_rest(cloud), seconds=20)
    monkeypatch.setattr(status, "IDLE_RESYNC_SECONDS", 0.3)
    await cloud.running.store.write(lambda tx: tx.enqueue(cluster.metadata.id, MINUTE_AGO))
    cloud.running.worker.notify()
    await until(lambda: short_of_a_minute(cloud), seconds=20)
    worker = Reference("Pod", cluster.metadata.id, "worker-0")
    cloud.engine.lose(worker)
    await until(lambda: ("DOWN", "worker-0") in cloud.slurm.calls and worker in cloud.world.pods, seconds=20)


async def short_of_a_minute(cloud: FakeCloud) -> bool:
    return await seconds_to_look(cloud) < 1.0


def row(kind: str, identifier: str, spec: bytes = b"", parent: str = "project-1") -> Resource:
    return Resource(
        identifier, kind, parent, identifier, MINUTE_AGO, MINUTE_AGO, spec=spec, finalizers=("x",)
    )


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """Two clusters at rest in one project: the first mounts a filesystem and has keys of an account."""
    clock = SystemClock()
    store = await open_store(":memory:", bytes(32), clock, watch=waking((SERVICE,), clock))
    keys = ClusterSpec(service_account_id="serviceaccount-1").SerializeToString()

    def make(tx: Transaction) -> None:
        for each in (
            row(CLUSTER, "first", keys),
            row(CLUSTER, "second"),
            row(CLUSTER, "other", keys, "project-2"),
        ):
            tx.insert(each)
        tx.insert(row(FILESYSTEM, "computefilesystem-1"))
        tx.insert(row(SERVICE_ACCOUNT, "serviceaccount-1"))
        tx.reserve(attachment_namespace("computefilesystem-1"), "write/first", "first")

    await store.write(make)
    await store.write(rest)
    yield store
    await store.close()


def rest(tx: Transaction) -> None:
    for identifier in tx.due([CLUSTER], datetime.now(UTC), 10):
        lease = tx.lease(identifier, "token", datetime.now(UTC), datetime.now(UTC) + timedelta(minutes=1))
        assert lease is not None
        kept = dict(status=None, state=None, observed_version=None, finalizers=None)
        later = datetime.now(UTC) + timedelta(minutes=1)
        tx.commit_result(lease, due_at=later, attempts=0, now=datetime.now(UTC), **kept)  # type: ignore[arg-type]


async def woken(store: Store) -> list[str]:
    return sorted(await store.read(lambda tx: tx.due([CLUSTER], datetime.now(UTC), 10)))


async def test_a_filesystem_that_fails_wakes_the_clusters_that_mount_it(store: Store) -> None:
    failed = row(FILESYSTEM, "computefilesystem-1")
    assert await woken(store) == []
    await store.write(lambda tx: tx.update(Resource(**{**vars(failed), "state": "ERROR"})))
    assert await woken(store) == ["first"]


async def test_an_account_that_goes_wakes_the_clusters_with_its_keys(store: Store) -> None:
    await store.write(lambda tx: tx.delete("serviceaccount-1"))
    assert await woken(store) == ["first"], "of its own project alone"
