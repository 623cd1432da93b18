"""The worker reaches each desired state once and without delay, and reports its progress."""

import asyncio
from dataclasses import replace

import pytest

from neocloud.core import contract, wire
from neocloud.core.reconcile import Worker
from neocloud.core.reconcile import worker as worker_module
from neocloud.core.reconcile.reconciler import Failed
from neocloud.core.store import StoreError
from tests.fast.core.reconcile.toy_reconcilers import FILESYSTEM, PROJECT, Cloud, Requests

ID = "slurmcluster-bank"


async def ready(cloud: Cloud) -> bool:
    row = await cloud.row()
    return row is not None and row.state == "READY" and row.observed_version == row.resource_version


async def test_the_desired_state_is_reached_and_its_operation_ends(cloud: Cloud, worker: Worker) -> None:
    await cloud.requests.create(count=3)
    worker.notify()
    took = await cloud.clock.run_until(lambda: ready(cloud))
    await cloud.check()
    operation = await cloud.operation()
    assert (operation.code, operation.finished_at) == (0, cloud.clock.now())
    row = await cloud.row()
    assert row is not None
    assert row.observed_version == 1
    states = contract.enum("neocloud.slurm.v1.ClusterStatus.State")
    assert states.Name(wire.resource_message(row).status.state) == "READY"
    assert took == pytest.approx(0.6)  # look, volume (meanwhile waiting), look, 3 x rent; no waiting between


async def test_a_wake_is_heard_without_polling(cloud: Cloud, worker: Worker) -> None:
    await cloud.clock.advance(0.5)
    await cloud.requests.create(count=0)
    worker.notify()
    assert await cloud.clock.run_until(lambda: ready(cloud)) < 0.5


async def test_a_request_nobody_told_of_is_found_by_polling(cloud: Cloud, worker: Worker) -> None:
    await cloud.clock.advance(0.5)
    await cloud.requests.create(count=0)
    assert await cloud.clock.run_until(lambda: ready(cloud)) < 2


async def test_a_change_of_the_world_is_repaired_when_told(cloud: Cloud, worker: Worker) -> None:
    await cloud.requests.create()
    await cloud.clock.run_until(lambda: ready(cloud))
    cloud.office.machines.popitem()
    worker.enqueue(ID)
    assert await cloud.clock.run_until(lambda: len(cloud.office.machines) == 2) < 0.5
    await cloud.check()


async def test_a_wake_for_something_unknown_is_ignored(cloud: Cloud, worker: Worker) -> None:
    worker.enqueue("someone-elses-namespace")
    await cloud.clock.advance(1)
    await cloud.requests.create()
    await cloud.clock.run_until(lambda: ready(cloud))


async def test_a_change_of_the_world_nobody_told_of_is_found_at_resync(cloud: Cloud, worker: Worker) -> None:
    await cloud.requests.create()
    await cloud.clock.run_until(lambda: ready(cloud))
    cloud.office.machines.popitem()
    await cloud.clock.advance(590)
    assert len(cloud.office.machines) == 1
    await cloud.clock.advance(15)
    assert len(cloud.office.machines) == 2


async def test_nothing_is_done_while_nothing_happens(cloud: Cloud, worker: Worker) -> None:
    await cloud.requests.create()
    await cloud.clock.run_until(lambda: ready(cloud))
    await cloud.clock.advance(1)
    cloud.office.calls.clear()
    await cloud.clock.advance(500)
    assert cloud.office.calls == []


async def test_a_wake_during_a_pass_runs_another(cloud: Cloud, worker: Worker) -> None:
    await cloud.requests.create(count=5)
    await cloud.clock.run_until(lambda: "rent" in cloud.office.calls)
    await cloud.requests.scale(ID, 1)
    worker.notify()
    await cloud.clock.run_until(lambda: ready(cloud))
    await cloud.check()


async def test_a_state_that_a_request_sets_during_a_pass_is_not_overwritten(
    cloud: Cloud, worker: Worker
) -> None:
    await cloud.requests.create()
    await cloud.clock.run_until(lambda: ready(cloud))
    calls = len(cloud.office.calls)
    worker.enqueue(ID)
    await cloud.clock.advance(0.05)  # in the middle of its first call to the world
    await cloud.store.write(lambda tx: tx.update(replace(tx.get(ID), state="STOPPED")))  # pyright: ignore
    await cloud.clock.run_until(lambda: len(cloud.office.calls) == calls + 2)
    row = await cloud.row()
    assert row is not None and row.state == "STOPPED"  # that pass has ended, the next one looks
    await cloud.clock.run_until(lambda: ready(cloud))


async def test_clusters_are_made_side_by_side(cloud: Cloud, worker: Worker) -> None:
    for number in range(6):
        await cloud.requests.create(f"c{number}", count=3)

    async def all_ready() -> bool:
        return not await cloud.unfinished()

    alone = 0.7
    assert await cloud.clock.run_until(all_ready) < 6 * alone / 2
    await cloud.check()


async def test_no_more_passes_than_allowed_run_at_once(cloud: Cloud) -> None:
    busy, most = 0, 0
    work = cloud.office._work

    async def counting(call: str) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await work(call)
        busy -= 1

    cloud.office._work = counting
    running = asyncio.create_task(cloud.worker(concurrency=2).run())
    for number in range(6):
        await cloud.requests.create(f"c{number}")

    async def all_ready() -> bool:
        return not await cloud.unfinished()

    await cloud.clock.run_until(all_ready)
    assert most == 2
    running.cancel()
    await asyncio.wait({running})


async def test_an_error_is_tried_again_with_growing_pauses(cloud: Cloud, worker: Worker) -> None:
    cloud.office.seconds_per_call = 0
    cloud.office.faults = [OSError("the cable is out")] * 9
    await cloud.requests.create(count=0)
    begin = cloud.clock.monotonic()
    tries: list[float] = []

    async def note() -> bool:
        seen = len([call for call in cloud.office.calls if call == "machines_of"])
        if seen > len(tries):
            tries.append(round(cloud.clock.monotonic() - begin, 1))
        return seen >= 9

    await cloud.clock.run_until(note, within=300)
    pauses = [round(b - a, 1) for a, b in zip(tries, tries[1:], strict=False)]
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6]


async def test_an_error_is_shown_to_who_waits_and_does_not_end_the_operation(
    cloud: Cloud, worker: Worker
) -> None:
    await cloud.requests.create(count=1)
    await cloud.clock.run_until(lambda: "rent" in cloud.office.calls)
    cloud.office.faults = [OSError("the cable is out")]
    await cloud.clock.advance(0.15)
    operation = await cloud.operation()
    assert operation.code is None
    tracker = wire.progress_tracker(operation)
    assert tracker.description == "Rent machines: the cable is out; trying again in 0.2 s"
    assert [(s.description, s.HasField("finished_at")) for s in tracker.steps] == [
        ("Make the file system", True),
        ("Rent machines", False),
        ("Give surplus machines back", False),
    ]
    await cloud.clock.run_until(lambda: ready(cloud))
    assert (await cloud.operation()).code == 0


async def test_a_cancellation_that_leaks_from_a_library_is_an_error_like_others(
    cloud: Cloud, worker: Worker
) -> None:
    cloud.office.faults = [asyncio.CancelledError("a connection was closed")] * 3
    await cloud.requests.create(count=0)
    worker.notify()
    assert 0.2 + 0.4 + 0.8 < await cloud.clock.run_until(lambda: ready(cloud)) < 3


async def test_a_success_resets_the_pauses(cloud: Cloud, worker: Worker) -> None:
    cloud.office.faults = [OSError("no")] * 4
    await cloud.requests.create(count=0)
    await cloud.clock.run_until(lambda: ready(cloud))
    cloud.office.machines["stray"] = ID
    cloud.office.faults = [OSError("no")]
    worker.enqueue(ID)
    assert await cloud.clock.run_until(lambda: not cloud.office.machines) < 0.6


async def test_a_failure_ends_the_operation_with_its_reason(cloud: Cloud, worker: Worker) -> None:
    cloud.office.faults = [Failed("NoMachines", "All are rented.", code=contract.Code.RESOURCE_EXHAUSTED)]
    await cloud.requests.create(count=1)

    async def ended() -> bool:
        return (await cloud.operation()).code is not None

    await cloud.clock.run_until(ended)
    status = wire.operation_message(await cloud.operation()).status
    assert (status.code, status.message) == (8, "All are rented.")
    assert contract.unpack(status.details[0]).code == "NoMachines"


async def test_progress_is_shown_while_a_long_step_runs(cloud: Cloud, worker: Worker) -> None:
    cloud.office.seconds_per_call = 5
    await cloud.requests.create(count=20)
    await cloud.clock.run_until(lambda: cloud.office.calls.count("rent") == 2)
    await cloud.clock.advance(1)
    steps = wire.progress_tracker(await cloud.operation()).steps
    assert [(s.HasField("started_at"), s.HasField("finished_at")) for s in steps] == [
        (True, True),
        (True, False),
        (False, False),
    ]


async def test_a_lease_is_kept_during_a_long_pass(cloud: Cloud, worker: Worker) -> None:
    cloud.office.seconds_per_call = 4
    await cloud.requests.create(count=10)
    running = asyncio.create_task(cloud.worker(take_over=False).run())
    await cloud.clock.run_until(lambda: ready(cloud), within=300)
    await cloud.check()
    assert cloud.office.calls.count("rent") == 10
    running.cancel()
    await asyncio.wait({running})


async def test_an_owner_is_woken_when_its_child_changes(cloud: Cloud, worker: Worker) -> None:
    await cloud.requests.create(count=0)
    assert await cloud.clock.run_until(lambda: ready(cloud)) < 5  # its step would look again after 30 s


async def test_a_child_follows_the_desired_state_of_its_owner(cloud: Cloud, worker: Worker) -> None:
    await cloud.requests.create()
    await cloud.clock.run_until(lambda: ready(cloud))
    child = await cloud.store.read(lambda tx: tx.find(FILESYSTEM, PROJECT, "bank-root"))
    assert child is not None
    assert (child.owner_id, child.state, child.resource_version) == (ID, "READY", 1)
    assert child.id.startswith("computefilesystem-")


async def test_a_taken_child_name_fails_with_words(cloud: Cloud, worker: Worker) -> None:
    other = Requests(cloud.store, cloud.clock)
    await other.create("other", count=0)
    await cloud.clock.advance(3)
    await cloud.store.write(lambda tx: _rename_child(tx, "other-root", "bank-root"))
    cloud.requests._numbers = other._numbers
    await cloud.requests.create(count=0)

    async def ended() -> bool:
        return (await cloud.operation("operation-1")).code is not None

    await cloud.clock.run_until(ended)
    assert "'bank-root' is taken" in (await cloud.operation("operation-1")).message


async def test_stopping_lets_passes_end(cloud: Cloud) -> None:
    worker = cloud.worker()
    running = asyncio.create_task(worker.run())
    await cloud.requests.create(count=2)
    await cloud.clock.run_until(lambda: "rent" in cloud.office.calls)
    stopping = asyncio.create_task(worker.stop())
    await cloud.clock.run_until(running.done, within=5)
    await stopping
    await cloud.check()
    assert await ready(cloud)


async def test_stopping_gives_leases_back_when_a_pass_does_not_end(cloud: Cloud) -> None:
    cloud.office.seconds_per_call = 1000
    worker = cloud.worker()
    running = asyncio.create_task(worker.run())
    await cloud.requests.create()
    await cloud.clock.advance(1)
    stopping = asyncio.create_task(worker.stop(grace_seconds=5))
    await cloud.clock.run_until(running.done, within=6)
    await stopping
    assert await cloud.store.read(lambda tx: tx.due([cloud_kind()], cloud.clock.now(), 10)) == [ID]


async def test_a_store_that_fails_for_a_while_does_not_end_the_worker(cloud: Cloud, monkeypatch) -> None:
    real, failures = cloud.store.write, [StoreError("No space is left.")] * 3

    async def write(work):
        if failures:
            raise failures.pop()
        return await real(work)

    await cloud.requests.create()
    monkeypatch.setattr(cloud.store, "write", write)
    running = asyncio.create_task(cloud.worker().run())
    await cloud.clock.run_until(lambda: ready(cloud))
    running.cancel()
    await asyncio.wait({running})


async def test_requests_are_looked_up_while_others_may_write(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lookup = cloud.store.write, worker_module._request_of
    is_writing = False
    looked_up: list[bool] = []

    async def write(work):
        def watched(tx):
            nonlocal is_writing
            is_writing = True
            try:
                return work(tx)
            finally:
                is_writing = False

        return await real(watched)

    def request_of(tx, resource):
        looked_up.append(is_writing)
        return lookup(tx, resource)

    monkeypatch.setattr(cloud.store, "write", write)
    monkeypatch.setattr(worker_module, "_request_of", request_of)
    await cloud.requests.create()
    running = asyncio.create_task(cloud.worker().run())
    await cloud.clock.run_until(lambda: ready(cloud))
    running.cancel()
    await asyncio.wait({running})
    assert looked_up and not any(looked_up)


async def test_a_leased_resource_runs_although_its_request_cannot_be_read(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    def request_of(tx, resource):
        raise StoreError("The database is gone.")

    monkeypatch.setattr(worker_module, "_request_of", request_of)
    await cloud.requests.create()
    running = asyncio.create_task(cloud.worker().run())
    assert await cloud.clock.run_until(lambda: ready(cloud)) < 2
    running.cancel()
    await asyncio.wait({running})


def cloud_kind() -> str:
    return "neocloud.slurm.v1.Cluster"


def _rename_child(tx, old: str, new: str) -> None:
    row = tx.find(FILESYSTEM, PROJECT, old)
    row = type(row)(**{**vars(row), "name": new})
    tx.update(row)
