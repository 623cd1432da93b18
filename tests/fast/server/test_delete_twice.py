"""A second Delete, of every kind that is served: the operation in progress, or NOT_FOUND when it is gone."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import pytest
from neocloud.messages.nebius.common.v1 import Operation

from neocloud.core import contract
from neocloud.core.kind import FINALIZER, Kind, delete_row, mark_for_deletion
from neocloud.core.reconcile.reconciler import Failed, ReconcileResult
from neocloud.core.reconcile.run import commit_result
from neocloud.core.store import OperationRow, Transaction
from tests.fast.server.walk.asking import request
from tests.fast.server.walk.cloud import TABLE, WalkedCloud, walked_cloud
from tests.fast.server.walk.holdings import CONTAINER, in_order

KINDS = {each.message: each for each in TABLE.kinds}
OTHERS = {
    "nebius.registry.v1.ArtifactService/Delete",  # ends at once; an artifact is no row
    "nebius.quotas.v1.QuotaAllowanceService/Delete",  # resets a quota, which every project has
    "neocloud.iam.v1.UserService/Delete",  # answers without an operation; the account goes immediately
}
SCHEDULED = {"nebius.storage.v1.Bucket"}
"""Delete schedules when they go, which can be taken back: tests/fast/services/storage/test_buckets.py."""
Paths = Sequence[str]


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[WalkedCloud]:
    async with walked_cloud(tmp_path) as ready:
        yield ready


def deletes(cloud: WalkedCloud) -> list[tuple[Kind, Paths]]:
    """Return each kind with the paths of its Delete, children before parents.

    Without projects, which hold more than the walk gives them; their Delete is the one of all kinds.
    """
    rank = [kind.message for kind in in_order(TABLE.kinds)]
    found = [(path, TABLE.kind_of(path)) for path in cloud.paths if path.endswith("/Delete")]
    assert {path for path, kind in found if kind is None} == OTHERS
    left_out = {CONTAINER, *SCHEDULED}
    known = [(kind, path) for path, kind in found if kind is not None and kind.message not in left_out]
    known.sort(key=lambda each: -rank.index(each[0].message))
    return [
        (KINDS[message], [path for _, path in each])
        for message, each in groupby(known, key=lambda each: each[0].message)
    ]


async def delete(cloud: WalkedCloud, path: str) -> tuple[str, str]:
    """Return the code, and the id of the operation."""
    answer = await cloud.ask(path, cloud.victim, cloud.tokens["victim"])
    return answer.code, Operation.FromString(answer.body).id


async def operation(cloud: WalkedCloud, identifier: str) -> OperationRow:
    found = await cloud.store.read(lambda tx: tx.get_operation(identifier))
    assert found is not None
    return found


async def remove(cloud: WalkedCloud, kind: Kind) -> None:
    """Remove the row, as the reconciler does in the end."""

    def work(tx: Transaction) -> None:
        row = tx.get(cloud.victim.of_kind(kind))
        assert row is not None and row.deleted_at is not None
        delete_row(tx, KINDS, row, datetime.now(UTC))

    await cloud.store.write(work)


async def test_a_second_delete_finds_the_operation_that_goes_on_or_nothing(cloud: WalkedCloud) -> None:
    kinds = deletes(cloud)
    assert len(kinds) > 30 and sum(kind.is_reconciled for kind, _ in kinds) > 8
    for kind, paths in kinds:
        code, first = await delete(cloud, paths[0])
        assert code == "OK", kind.message
        for path in (*paths, *paths) if kind.is_reconciled else ():
            assert await delete(cloud, path) == ("OK", first), path
        if kind.is_reconciled:
            assert (await operation(cloud, first)).code is None, kind.message
            await remove(cloud, kind)
        assert (await operation(cloud, first)).code == contract.Code.OK, kind.message
        for path in (*paths, *paths):
            assert await delete(cloud, path) == ("NOT_FOUND", ""), path


async def test_a_delete_of_what_goes_with_its_owner_ends_with_it(cloud: WalkedCloud) -> None:
    for kind, paths in [each for each in deletes(cloud) if each[0].is_reconciled]:
        identifier = cloud.victim.of_kind(kind)

        def mark(tx: Transaction, identifier: str = identifier) -> None:
            row = tx.get(identifier)
            assert row is not None
            marked = replace(row, finalizers=(FINALIZER,))
            tx.update(marked)
            mark_for_deletion(tx, KINDS, marked, datetime.now(UTC))

        await cloud.store.write(mark)
        code, first = await delete(cloud, paths[0])
        assert (code, (await operation(cloud, first)).code) == ("OK", None), kind.message
        assert await delete(cloud, paths[-1]) == ("OK", first), kind.message
        await remove(cloud, kind)
        assert (await operation(cloud, first)).code == contract.Code.OK, kind.message


async def fail(cloud: WalkedCloud, kind: Kind) -> None:
    """End a run of the resource as the worker does when it cannot continue: nothing is due any more."""
    identifier = cloud.victim.of_kind(kind)

    def work(tx: Transaction) -> None:
        row, now = tx.get(identifier), datetime.now(UTC)
        lease = tx.lease(identifier, "t1", now, now + timedelta(seconds=30))
        assert row is not None and lease is not None
        failed = ReconcileResult(error=Failed("DiskBusy", "The disk is busy."))
        commit_result(tx, KINDS, row, lease, failed, now)

    await cloud.store.write(work)


async def is_due(cloud: WalkedCloud, kind: Kind) -> bool:
    soon = datetime.now(UTC) + timedelta(seconds=5)
    due = await cloud.store.read(lambda tx: tx.due([kind.message], soon, 1000))
    return cloud.victim.of_kind(kind) in due


async def test_a_delete_after_one_that_failed_is_a_new_attempt(cloud: WalkedCloud) -> None:
    for kind, paths in deletes(cloud):
        code, first = await delete(cloud, paths[0])
        assert code == "OK", kind.message
        if not kind.is_reconciled:
            continue
        await fail(cloud, kind)
        assert (await operation(cloud, first)).code == contract.Code.FAILED_PRECONDITION, kind.message
        assert not await is_due(cloud, kind), kind.message
        code, again = await delete(cloud, paths[0])
        assert code == "OK" and again != first, kind.message
        assert (await operation(cloud, again)).code is None and await is_due(cloud, kind), kind.message
        await remove(cloud, kind)


async def test_a_user_account_is_deleted_once(cloud: WalkedCloud) -> None:
    path = "neocloud.iam.v1.UserService/Delete"
    message = request(path, TABLE, cloud.victim)
    message.id = cloud.victim.ids["tenantuseraccount"]
    codes = [(await cloud.send(path, message, cloud.tokens["victim"])).code for _ in range(3)]
    assert codes[1:] == ["NOT_FOUND", "NOT_FOUND"], codes
