"""Deletion takes the world down first, then what is owned, then the row; the operation tells its end."""

from dataclasses import replace

from neocloud.core.reconcile import Worker
from neocloud.core.reconcile.reconciler import Failed
from neocloud.core.store import Resource
from tests.fast.core.reconcile.toy_reconcilers import FILESYSTEM, PROJECT, Cloud

ID = "slurmcluster-bank"


async def made(cloud: Cloud) -> None:
    await cloud.requests.create()

    async def settled() -> bool:
        return not await cloud.unfinished()

    await cloud.clock.run_until(settled)
    await cloud.clock.advance(1)


async def gone(cloud: Cloud) -> bool:
    return await cloud.row() is None


async def test_a_deleted_cluster_leaves_nothing_behind(cloud: Cloud, worker: Worker) -> None:
    await made(cloud)
    deletion = await cloud.requests.delete(ID)
    worker.notify()
    assert await cloud.clock.run_until(lambda: gone(cloud)) < 2
    await cloud.check()
    assert (cloud.office.machines, cloud.office.volumes) == ({}, set())
    assert await cloud.store.read(lambda tx: tx.list(FILESYSTEM)) == ([], "")
    ended = await cloud.operation(deletion.id)
    assert (ended.code, ended.finished_at) == (0, cloud.clock.now())


async def test_operations_of_a_deleted_resource_stay_readable(cloud: Cloud, worker: Worker) -> None:
    await made(cloud)
    await cloud.requests.delete(ID)
    await cloud.clock.run_until(lambda: gone(cloud))
    rows, _ = await cloud.store.read(lambda tx: tx.list_operations(resource_id=ID))
    assert [(row.method.rpartition("/")[2], row.code) for row in rows] == [("Delete", 0), ("Create", 0)]


async def test_a_delete_in_the_middle_of_a_create_wins(cloud: Cloud, worker: Worker) -> None:
    await cloud.requests.create(count=5)
    await cloud.clock.run_until(lambda: "rent" in cloud.office.calls)
    deletion = await cloud.requests.delete(ID)
    await cloud.clock.run_until(lambda: gone(cloud))
    await cloud.check()
    assert (await cloud.operation("operation-0")).code == 10
    assert (await cloud.operation(deletion.id)).code == 0


async def test_the_state_stays_deleting_when_deletion_comes_during_a_pass(
    cloud: Cloud, worker: Worker
) -> None:
    await cloud.requests.create(count=2)
    await cloud.clock.run_until(lambda: "rent" in cloud.office.calls)
    await cloud.requests.delete(ID)
    await cloud.clock.run_until(lambda: gone(cloud))
    history = await cloud.store.read(lambda tx: tx.history(resource_id=ID))
    states = [entry.state for entry in history]
    assert states[-2:] == ["DELETING", "DELETING"]
    assert "READY" not in states
    assert [entry.is_deleted for entry in history][-2:] == [False, True]


async def test_the_row_stays_until_the_world_is_down(cloud: Cloud, worker: Worker) -> None:
    await made(cloud)
    deletion = await cloud.requests.delete(ID)
    cloud.office.faults = [OSError("still in use")] * 3
    await cloud.clock.advance(0.5)
    row = await cloud.row()
    assert row is not None and row.finalizers
    assert (await cloud.operation(deletion.id)).code is None
    await cloud.clock.run_until(lambda: gone(cloud))
    await cloud.check()


async def test_a_failed_deletion_is_told_and_can_be_asked_for_again(cloud: Cloud, worker: Worker) -> None:
    await made(cloud)
    first = await cloud.requests.delete(ID)
    cloud.office.faults = [Failed("InUse", "Somebody holds the machine.")]

    async def told() -> bool:
        return (await cloud.operation(first.id)).code == 9

    await cloud.clock.run_until(told)
    assert await cloud.row() is not None
    second = await cloud.requests.delete(ID)
    worker.notify()
    await cloud.clock.run_until(lambda: gone(cloud))
    assert (await cloud.operation(second.id)).code == 0


async def test_a_child_that_disappeared_is_made_again(cloud: Cloud, worker: Worker) -> None:
    await made(cloud)
    child = await cloud.store.read(lambda tx: tx.find(FILESYSTEM, PROJECT, "bank-root"))
    assert child is not None
    await cloud.store.write(lambda tx: tx.update(replace(child, deleted_at=cloud.clock.now())))
    worker.notify()

    async def replaced() -> bool:
        now = await cloud.store.read(lambda tx: tx.find(FILESYSTEM, PROJECT, "bank-root"))
        return now is not None and now.id != child.id and now.state == "READY"

    await cloud.clock.run_until(replaced, within=5)
    await cloud.clock.advance(1)
    await cloud.check()


async def test_a_parent_is_woken_when_its_child_is_gone(cloud: Cloud, worker: Worker) -> None:
    await made(cloud)
    child = Resource(
        "computefilesystem-x",
        FILESYSTEM,
        ID,
        "x",
        cloud.clock.now(),
        cloud.clock.now(),
        finalizers=("reconcile",),
    )
    await cloud.store.write(lambda tx: tx.insert(child))
    await cloud.clock.advance(2)
    cloud.office.calls.clear()
    await cloud.store.write(lambda tx: tx.update(replace(child, deleted_at=cloud.clock.now())))
    worker.notify()
    await cloud.clock.advance(1)
    assert cloud.office.calls == ["remove_volume", "machines_of"]
