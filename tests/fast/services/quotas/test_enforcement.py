"""Quotas are kept in the transaction that takes: QUOTA-01, and "two racing creates never both pass"."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from nebius.aio.service_error import RequestError

from neocloud.core import contract
from neocloud.core.store import Store, Transaction
from neocloud.testing.waiting import until
from tests.fast.services.quotas.conftest import COUNT, GIB, SIZE, Cloud, refused, running_cloud

RACERS = 40


async def test_what_is_made_grown_and_removed_is_counted(cloud: Cloud) -> None:
    first = await cloud.made_filesystem("a", 10)
    await cloud.made_filesystem("b", 5)
    for scope in (cloud.project_id, cloud.tenant_id):
        assert await cloud.usage(COUNT, scope) == 2
        assert await cloud.usage(SIZE, scope) == 15 * GIB
    await cloud.grow(first, 20)
    assert await cloud.usage(SIZE) == 25 * GIB
    await cloud.remove(first)
    assert (await cloud.usage(COUNT), await cloud.usage(SIZE)) == (1, 5 * GIB)
    assert await cloud.counter_errors() == {}


async def test_the_refusal_says_which_quota_how_much_and_what_next(cloud: Cloud) -> None:
    await cloud.limit(SIZE, 10 * GIB)
    await cloud.limit(COUNT, 1)
    await cloud.made_filesystem("a", 8)
    status = await refused(cloud.make_filesystem("b", 4))
    assert status.code.name == "RESOURCE_EXHAUSTED"
    assert f"neo quota set {SIZE} {12 * GIB} --project {cloud.project_id}" in status.message
    assert "8 GiB of 10 GiB are used, 4 GiB more were requested" in status.message
    (error,) = status.service_errors
    assert error.retry_type.name == "NOTHING"
    found = {violation.quota: violation for violation in error.quota_failure.violations}
    assert set(found) == {SIZE, COUNT}
    assert (found[SIZE].limit, found[SIZE].requested) == (str(10 * GIB), str(4 * GIB))
    assert (found[COUNT].limit, found[COUNT].requested) == ("1", "1")


async def test_a_refused_create_takes_nothing(cloud: Cloud) -> None:
    await cloud.limit(SIZE, 10 * GIB)
    await refused(cloud.make_filesystem("a", 11))
    assert (await cloud.usage(COUNT), await cloud.usage(SIZE)) == (0, 0)
    await cloud.made_filesystem("a", 10)


async def test_growing_is_checked_and_other_changes_are_not(cloud: Cloud) -> None:
    identifier = await cloud.made_filesystem("a", 5)
    await cloud.limit(SIZE, 4 * GIB)
    status = await refused(cloud.grow(identifier, 6))
    assert status.code.name == "RESOURCE_EXHAUSTED"
    await cloud.grow(identifier, 5)  # over the limit already, but it takes nothing more
    await cloud.remove(identifier)


async def test_what_is_freed_can_be_used_again(cloud: Cloud) -> None:
    await cloud.limit(COUNT, 1)
    identifier = await cloud.made_filesystem("a")
    assert (await refused(cloud.make_filesystem("b"))).code.name == "RESOURCE_EXHAUSTED"
    await cloud.remove(identifier)
    await cloud.made_filesystem("b")


async def test_the_tenant_has_the_last_word(cloud: Cloud) -> None:
    await cloud.limit(COUNT, 1, cloud.tenant_id)
    await cloud.made_filesystem("a")
    status = await refused(cloud.make_filesystem("b"))
    assert f"--tenant {cloud.tenant_id}" in status.message


async def test_of_many_that_race_exactly_the_limit_gets_through(tmp_path: Path, database_url: str) -> None:
    """Through the real server, all at once, for the last units."""
    async with running_cloud(tmp_path, database_url=database_url) as cloud:
        await cloud.limit(COUNT, 7)
        creates = (cloud.make_filesystem(f"f{number}") for number in range(RACERS))
        found = await asyncio.gather(*creates, return_exceptions=True)
        refusals = [each for each in found if isinstance(each, RequestError)]
        assert {each.status.code.name for each in refusals} == {"RESOURCE_EXHAUSTED"}
        assert len(found) - len(refusals) == 7
        assert await cloud.usage(COUNT) == 7
        assert await cloud.counter_errors() == {}


async def test_two_servers_on_one_database_share_the_last_unit(tmp_path: Path, empty_database: str) -> None:
    homes = [tmp_path / name for name in ("one", "two")]
    for home in homes:
        home.mkdir()
    async with running_cloud(homes[0], database_url=empty_database) as first:
        shutil.copy(homes[0] / "store.key", homes[1])
        # Without it the second would take the first one's operator for lost, and make another key.
        (homes[1] / "credentials.json").write_text(json.dumps(first.running.first.credentials))
        async with running_cloud(homes[1], database_url=empty_database) as second:
            await first.limit(COUNT, 5)
            creates = (
                cloud.make_filesystem(f"{name}{number}")
                for number in range(RACERS // 2)
                for name, cloud in (("a", first), ("b", second))
            )
            found = await asyncio.gather(*creates, return_exceptions=True)
            assert sum(isinstance(each, str) for each in found) == 5
            assert await second.usage(COUNT) == 5
            assert await first.counter_errors() == {}


async def test_wrong_counters_are_found_and_repaired(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    await cloud.made_filesystem("a", 3)
    store: Store = cloud.running.store

    def spoil(tx: Transaction) -> None:
        tx.count(cloud.project_id, COUNT, 5)
        tx.count(cloud.tenant_id, SIZE, -GIB)

    await store.write(spoil)
    assert await cloud.counter_errors() == {(cloud.project_id, COUNT): -5, (cloud.tenant_id, SIZE): GIB}
    assert await cloud.ledger.recount(store) == 2
    assert await cloud.ledger.recount(store) == 0
    assert (await cloud.usage(COUNT), await cloud.usage(SIZE, cloud.tenant_id)) == (1, 3 * GIB)
    assert "the usage of 2 quotas was wrong" in caplog.text


async def test_a_child_without_room_ends_its_owners_operation_in_words(cloud: Cloud) -> None:
    """A cluster is accepted, its shared root is a file system of its own, and that one asks for room."""
    await cloud.limit(SIZE, 1 * GIB)
    cluster = contract.message("neocloud.slurm.v1.CreateClusterRequest")()
    cluster.metadata.parent_id, cluster.metadata.name = cloud.project_id, "lab"
    cluster.spec.node_sets.add(name="worker", platform="cpu-local", preset="1vcpu-1gb", count=1)
    operation = await call(cloud, "neocloud.slurm.v1.ClusterService/Create", cluster)
    request = contract.message("nebius.common.v1.GetOperationRequest")(id=operation.id)
    operation = await until(
        lambda: call(cloud, "nebius.common.v1.OperationService/Get", request),
        holds=lambda found: found.HasField("status"),
    )
    assert operation.status.code == contract.Code.RESOURCE_EXHAUSTED
    assert SIZE in operation.status.message


async def call(cloud: Cloud, path: str, request: Any) -> Any:
    """A method that the official SDK does not have."""
    rpc = contract.method(path)
    token = await cloud.sdk.get_token(timeout=60)
    async with grpc.aio.insecure_channel(cloud.running.server.addresses.grpc) as channel:
        unary = channel.unary_unary(f"/{path}", rpc.input.SerializeToString, rpc.output.FromString)
        return await unary(request, metadata=[("authorization", f"Bearer {token.token}")])
