"""H2: versions of resources are kept for long, so what they take is a quota, which goes down when they go."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from neocloud.messages.nebius.quotas.v1 import QuotaAllowanceSpec

from neocloud.control_plane.composition import SERVICES, control_plane
from neocloud.core import contract
from neocloud.core.clock import Clock, SystemClock
from neocloud.core.contract import ApiError
from neocloud.core.store import Resource, Store, Transaction, load_or_make_key, open_store
from neocloud.engines.fake import FakeEngine
from neocloud.server.retention import KEEP_VERSIONS_FOR, forget_old_history
from neocloud.services import iam, quotas
from neocloud.services.iam.types import CONTAINER, SERVICE_ACCOUNT
from neocloud.services.quotas.ledger import HISTORY, HISTORY_COUNTED, HISTORY_ENTRY_BYTES
from neocloud.services.quotas.rules import ALLOWANCE, allowance_id
from neocloud.settings.settings import Settings
from neocloud.testing.waiting import FakeClock, until

NOW = datetime(2026, 1, 1, tzinfo=UTC)
INVITATION = "nebius.iam.v1.Invitation"
TENANT, PROJECT = "tenant-e00one", "project-e00one"
LEDGER = quotas.ledger(SERVICES, quotas.load_quotas(None))
assert iam.SERVICE in SERVICES


def resource(kind: str, identifier: str, parent_id: str, **given: object) -> Resource:
    return Resource(identifier, kind, parent_id, identifier, NOW, NOW, **given)  # type: ignore[arg-type]


def account(number: int = 1, **labels: str) -> Resource:
    return resource(SERVICE_ACCOUNT, f"serviceaccount-e00n{number}", PROJECT, labels=labels)


async def new_store(clock: Clock | None = None, *, is_watched: bool = True) -> Store:
    clock = clock or SystemClock()
    store = await open_store(":memory:", b"k" * 32, clock, watch=LEDGER.watch if is_watched else None)

    def fill(tx: Transaction) -> None:
        tx.insert(resource(CONTAINER, TENANT, ""))
        tx.insert(resource(CONTAINER, PROJECT, TENANT))

    await store.write(fill)
    return store


async def used(store: Store, scope: str = PROJECT) -> int:
    return await store.read(lambda tx: tx.counters(scope).get(HISTORY, 0))


async def limit(store: Store, amount: int) -> None:
    spec = QuotaAllowanceSpec(limit=amount).SerializeToString()
    row = replace(resource(ALLOWANCE, allowance_id(PROJECT, HISTORY), PROJECT, spec=spec), name=HISTORY)
    await store.write(lambda tx: tx.insert(row))


async def test_every_version_is_counted_and_stays_counted_when_its_resource_is_gone() -> None:
    store = await new_store()
    await store.write(lambda tx: tx.insert(account(k="v")))
    first = await used(store)
    assert first == HISTORY_ENTRY_BYTES + len('{"k": "v"}')
    await store.write(lambda tx: tx.update(account(k="v" * 101)))
    assert await used(store) - first == first + 100
    await store.write(lambda tx: tx.delete(account().id))
    assert await used(store) - first == 2 * (first + 100)
    assert await used(store, TENANT) > await used(store), "the project itself is a resource of the tenant"
    await store.close()


async def test_a_change_beyond_the_quota_is_refused_and_leaves_nothing() -> None:
    store = await new_store()
    await store.write(lambda tx: tx.insert(account()))
    await limit(store, await used(store) + 2 * HISTORY_ENTRY_BYTES + 100)
    with pytest.raises(ApiError) as refused:
        await store.write(lambda tx: tx.update(account(k="v" * 500)))
    assert refused.value.code is contract.Code.RESOURCE_EXHAUSTED
    (violation,) = refused.value.details[0].quota_failure.violations
    assert violation.quota == HISTORY
    assert "neo quota set history.size" in refused.value.message
    assert await store.read(lambda tx: [entry.labels for entry in tx.history(resource_id=account().id)]) == [
        {}
    ]
    with pytest.raises(ApiError):
        await store.write(lambda tx: [tx.insert(account(number)) for number in range(2, 5)])
    await store.close()


async def test_states_and_removals_are_never_refused() -> None:
    store = await new_store()
    await store.write(lambda tx: tx.insert(account()))
    await limit(store, 1)
    before = await used(store)
    await store.write(lambda tx: tx.update(replace(account(), state="ACTIVE")))
    await store.write(lambda tx: tx.delete(account().id))
    assert await used(store) - before == 2 * HISTORY_ENTRY_BYTES
    await store.close()


async def test_a_store_of_before_is_counted_once() -> None:
    store = await new_store(is_watched=False)
    await store.write(lambda tx: tx.insert(account(k="v" * 1000)))
    await store.write(lambda tx: tx.update(account(k="w" * 1000)))
    assert await used(store) == 0
    await LEDGER.recount(store)
    counted = await used(store)
    assert 2 * 1000 < counted < 2 * 1000 + 4 * HISTORY_ENTRY_BYTES
    assert await LEDGER.recount(store) == 0
    assert await used(store) == counted
    await store.close()


async def test_a_full_project_can_be_changed_again_when_old_versions_are_gone() -> None:
    clock = FakeClock()
    store = await new_store(clock)
    await store.write(lambda tx: tx.insert(account(k="v" * 500)))
    await store.write(lambda tx: tx.update(account(k="v")))
    await limit(store, await used(store))
    with pytest.raises(ApiError):
        await store.write(lambda tx: tx.update(account(k="w")))
    await clock.advance(KEEP_VERSIONS_FOR.total_seconds() + 3600)
    await forget(store, clock)
    await store.write(lambda tx: tx.update(account(k="w")))
    await store.close()


async def test_what_is_counted_is_what_is_kept() -> None:
    clock = FakeClock()
    store = await new_store(clock)
    for number in range(3):
        await store.write(lambda tx, n=number: tx.insert(account(n)))
        await store.write(lambda tx, n=number: tx.update(account(n, name="é", more="x" * n)))
    sealed = resource(INVITATION, "invitation-e00one", PROJECT, spec=b"\n\x03abc")
    await store.write(lambda tx: tx.insert(sealed))
    await store.write(lambda tx: tx.update(replace(sealed, state="SENT")))
    await store.write(lambda tx: tx.delete(account(1).id))
    before = await used(store), await used(store, TENANT)
    await clock.advance(KEEP_VERSIONS_FOR.total_seconds() + 3600)
    await forget(store, clock)
    assert await used(store) < before[0] and await used(store, TENANT) < before[1]
    assert await recounted(store) == (await used(store), await used(store, TENANT))
    await store.close()


async def test_versions_of_a_deleted_project_count_for_its_tenant_until_they_go() -> None:
    clock = FakeClock()
    store = await new_store(clock)
    empty = await used(store, TENANT)
    await store.write(lambda tx: tx.insert(account(k="v" * 1000)))
    await store.write(lambda tx: [tx.delete(account().id), tx.delete(PROJECT)])
    assert await used(store, TENANT) > empty + 2000
    assert await recounted(store) == (0, await used(store, TENANT))
    await clock.advance(KEEP_VERSIONS_FOR.total_seconds() + 3600)
    await forget(store, clock)
    await forget(store, clock)  # the project's own last entry, which said whose the others were
    assert await used(store, TENANT) == 0
    assert [entry.resource_id for entry in await store.read(lambda tx: tx.history())] == [TENANT]
    await store.close()


async def test_a_running_cloud_removes_old_versions_and_counts_them_back(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, grpc_port=0, http_port=0, gateway_port=0)
    tmp_path.chmod(0o700)
    past = FakeClock(datetime.now(UTC) - 2 * KEEP_VERSIONS_FOR)
    key = load_or_make_key(settings.key_file)
    store = await open_store(settings.database, key, past, watch=LEDGER.watch)
    row = resource(SERVICE_ACCOUNT, "serviceaccount-e00one", TENANT, labels={"k": "v"})
    await store.write(lambda tx: [tx.insert(resource(CONTAINER, TENANT, "")), tx.insert(row)])
    await store.write(lambda tx: tx.update(replace(row, state="ACTIVE")))
    before = await used(store, TENANT)
    await store.close()
    async with control_plane(settings, FakeEngine(), clock=SystemClock()) as running:
        await until(
            lambda: running.store.read(lambda tx: tx.history(resource_id=row.id)),
            holds=lambda entries: len(entries) <= 1,
        )
        assert 2 * await used(running.store, TENANT) == before


async def forget(store: Store, clock: FakeClock) -> None:
    """One pass."""
    task = asyncio.create_task(
        forget_old_history(store, clock, [], LEDGER.forgotten, keep_metered_for=timedelta(days=400))
    )
    await clock.advance(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def recounted(store: Store) -> tuple[int, int]:
    """Return the counts of the project and the tenant, from a start that does not trust the counters."""
    kept = await used(store, "")
    await store.write(lambda tx: [tx.count("", HISTORY_COUNTED, 1), tx.count(TENANT, HISTORY, 7)])
    await LEDGER.recount(store)
    assert await used(store, "") == kept
    return await used(store), await used(store, TENANT)
