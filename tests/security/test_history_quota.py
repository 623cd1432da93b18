"""Every version of a resource is kept for good, so what they take is a quota; old stores are counted once."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from neocloud.app import SERVICES
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.contract import ApiError
from neocloud.core.store import Resource, Store, Transaction, open_store
from neocloud.services import iam, quotas
from neocloud.services.iam.resources import CONTAINER, SERVICE_ACCOUNT
from neocloud.services.quotas.ledger import HISTORY, HISTORY_ENTRY_BYTES
from neocloud.services.quotas.resources import ALLOWANCE, QuotaAllowanceSpec, allowance_id

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TENANT, PROJECT = "tenant-e00one", "project-e00one"
LEDGER = quotas.ledger(SERVICES, quotas.load_quotas(None))
assert iam.SERVICE in SERVICES


def resource(kind: str, identifier: str, parent_id: str, **given: object) -> Resource:
    return Resource(identifier, kind, parent_id, identifier, NOW, NOW, **given)  # type: ignore[arg-type]


def account(number: int = 1, **labels: str) -> Resource:
    return resource(SERVICE_ACCOUNT, f"serviceaccount-e00n{number}", PROJECT, labels=labels)


async def new_store(*, is_watched: bool = True) -> Store:
    store = await open_store(":memory:", b"k" * 32, SystemClock(), watch=LEDGER.watch if is_watched else None)

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


async def test_every_version_is_counted_and_stays_counted() -> None:
    store = await new_store()
    await store.write(lambda tx: tx.insert(account(k="v")))
    first = await used(store)
    assert first == HISTORY_ENTRY_BYTES + 2
    await store.write(lambda tx: tx.update(account(k="v" * 101)))
    assert await used(store) - first == HISTORY_ENTRY_BYTES + 102
    await store.write(lambda tx: tx.delete(account().id))
    assert await used(store) - first == 2 * (HISTORY_ENTRY_BYTES + 102)
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
