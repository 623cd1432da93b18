"""Operations end once, with a code the contract allows, for the version they asked for."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from neocloud.core import contract, operations, wire
from neocloud.core.contract import Code
from neocloud.core.operations import ProgressStep, StepOutcome
from neocloud.core.store import Store, Transaction, open_store
from neocloud.testing.store_conformance.records import NOW, operation
from neocloud.testing.waiting import FakeClock

ID = operation().resource_id
LATER = NOW + timedelta(seconds=5)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = await open_store(":memory:", bytes(32), FakeClock())
    yield store
    await store.close()


def verb(name: str, id: str, version: int = 1):
    return operation(id, method=f"neocloud.slurm.v1.ClusterService/{name}", resource_version=version)


async def codes(store: Store) -> dict[str, int | None]:
    rows, _ = await store.read(lambda tx: tx.list_operations(resource_id=ID))
    return {row.id: row.code for row in rows}


async def keep(store: Store, *rows) -> None:
    def write(tx: Transaction) -> None:
        for row in rows:
            tx.insert_operation(row)

    await store.write(write)


def test_a_finished_operation_has_a_present_and_empty_status() -> None:
    done = operations.finish(operation(), LATER)
    assert (done.code, done.finished_at) == (0, LATER)
    message = wire.operation_message(done)
    assert message.HasField("status")
    assert message.status.code == 0


def test_an_operation_ends_once() -> None:
    with pytest.raises(ValueError, match="ended already"):
        operations.finish(operations.finish(operation(), NOW), LATER)


def test_an_error_is_told_with_its_details_and_service() -> None:
    failed = operations.finish(
        operation(), LATER, contract.not_enough_resources("gpu", "8", "No GPU is free.")
    )
    status = wire.operation_message(failed).status
    assert (status.code, status.message) == (8, "No GPU is free.")
    assert contract.unpack(status.details[0]).service == "slurm"


def test_a_code_the_contract_does_not_allow_becomes_internal() -> None:
    assert operations.finish(operation(), NOW, contract.unavailable("gone")).code == Code.INTERNAL


async def test_what_was_made_true_ends_operations_up_to_its_version(store: Store) -> None:
    await keep(store, verb("Create", "o1", 1), verb("Update", "o2", 2), verb("Update", "o3", 3))
    ended = await store.write(lambda tx: operations.finish_for(tx, ID, LATER, observed_version=2))
    assert ended == 2
    assert await codes(store) == {"o1": 0, "o2": 0, "o3": None}


async def test_a_delete_is_not_done_before_the_row_is_gone(store: Store) -> None:
    await keep(store, verb("Update", "o1"), verb("Delete", "o2"))
    await store.write(lambda tx: operations.finish_for(tx, ID, LATER, observed_version=1))
    assert await codes(store) == {"o1": 0, "o2": None}
    await store.write(lambda tx: operations.finish_removed(tx, ID, LATER))
    assert await codes(store) == {"o1": 0, "o2": 0}


async def test_a_failed_delete_is_told(store: Store) -> None:
    await keep(store, verb("Delete", "o1"))
    error = contract.bad_state(ID, "In use.")
    await store.write(lambda tx: operations.finish_for(tx, ID, LATER, observed_version=1, error=error))
    assert await codes(store) == {"o1": 9}


async def test_what_is_gone_cannot_be_changed_any_more(store: Store) -> None:
    await keep(store, verb("Update", "o1"), verb("Delete", "o2"))
    assert await store.write(lambda tx: operations.finish_removed(tx, ID, LATER)) == 2
    assert await codes(store) == {"o1": 10, "o2": 0}


async def test_a_later_change_aborts_what_is_unfinished(store: Store) -> None:
    await keep(
        store, operations.finish(verb("Create", "o1"), NOW), verb("Update", "o2"), verb("Update", "o3")
    )
    assert await store.write(lambda tx: operations.abort_unfinished(tx, ID, LATER, "Deleted.")) == 2
    assert await codes(store) == {"o1": 0, "o2": 10, "o3": 10}
    aborted = await store.read(lambda tx: tx.get_operation("o2"))
    assert aborted is not None
    status = wire.operation_message(aborted).status
    assert status.message == "Deleted."
    assert contract.unpack(status.details[0]).operation_aborted.operation_id == "o2"


async def test_operations_of_others_are_left_alone(store: Store) -> None:
    await keep(store, operation("o1", resource_id="another"))
    assert await store.write(lambda tx: operations.abort_unfinished(tx, ID, LATER, "Deleted.")) == 0


async def test_progress_keeps_the_first_times_of_each_step(store: Store) -> None:
    await keep(store, verb("Create", "o1"))
    passes = [
        (NOW, [ProgressStep("a", StepOutcome.RUNNING), ProgressStep("b")], "a: starting"),
        (LATER, [ProgressStep("a", StepOutcome.OK), ProgressStep("b", StepOutcome.RUNNING)], "b: starting"),
        (
            LATER + timedelta(1),
            [ProgressStep("a", StepOutcome.OK), ProgressStep("b", StepOutcome.RUNNING)],
            "b: starting",
        ),
    ]
    for at, steps, text in passes:
        await store.write(lambda tx, p=(steps, text, at): operations.report_progress(tx, ID, *p))
    row = await store.read(lambda tx: tx.get_operation("o1"))
    assert row is not None
    tracker = wire.operation_message(row).progress_tracker
    assert tracker.description == "b: starting"
    assert (tracker.work_done.done_tick_count, tracker.work_done.total_tick_count) == (1, 2)
    a, b = tracker.steps
    assert contract.to_datetime(a.started_at) == NOW
    assert contract.to_datetime(a.finished_at) == LATER
    assert contract.to_datetime(b.started_at) == LATER
    assert not b.HasField("finished_at")


async def test_progress_that_did_not_change_writes_nothing(store: Store) -> None:
    await keep(store, verb("Create", "o1"))
    steps = [ProgressStep("a", StepOutcome.RUNNING)]
    report = lambda tx: operations.report_progress(tx, ID, steps, "", NOW)  # noqa: E731
    assert [await store.write(report), await store.write(report)] == [1, 0]


async def test_a_finished_operation_shows_all_its_steps_done(store: Store) -> None:
    await keep(store, verb("Create", "o1"))
    steps = [ProgressStep("a", StepOutcome.OK), ProgressStep("b", StepOutcome.RUNNING)]
    await store.write(lambda tx: operations.report_progress(tx, ID, steps, "b: starting", NOW))
    await store.write(lambda tx: operations.finish_for(tx, ID, LATER, observed_version=1))
    row = await store.read(lambda tx: tx.get_operation("o1"))
    assert row is not None
    tracker = wire.operation_message(row).progress_tracker
    assert all(step.HasField("finished_at") for step in tracker.steps)
    assert contract.to_datetime(tracker.finished_at) == LATER
