"""Find over the whole cloud's API: exactly what the caller may read, in order, page by page."""

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.neocloud.search.v1 import FindResourcesRequest, FindResourcesResponse

from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.store import Transaction
from neocloud.services.iam.access.tokens import token_issuer
from neocloud.services.iam.types import ACCESS_PERMIT, CONTAINER, GROUP, STATIC_KEY
from tests.fast.server.walk.cloud import TABLE, WalkedCloud, add_account, insert, walked_cloud

pytestmark = pytest.mark.slow

FIND = "neocloud.search.v1.SearchService/Find"
ROLES = ("viewer", "slurm.viewer", "compute.images.user", "iam.viewer", "vpc.editor", "inference.user")


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[WalkedCloud]:
    async with walked_cloud(tmp_path) as ready:
        yield ready


async def find(cloud: WalkedCloud, who: str, **conditions: Any) -> FindResourcesResponse:
    answer = await cloud.send(FIND, FindResourcesRequest(**conditions), cloud.tokens[who])
    assert answer.code == "OK", answer.message
    return FindResourcesResponse.FromString(answer.body)


async def ids(cloud: WalkedCloud, who: str, **conditions: Any) -> list[str]:
    """Return the ids of all results, read page by page."""
    found, token = list[str](), ""
    while True:
        page = await find(cloud, who, page_token=token, **conditions)
        found += [item.id for item in page.items]
        token = page.next_page_token
        if not token:
            return found


async def grant(cloud: WalkedCloud, who: str, roles: Sequence[tuple[str, str]]) -> None:
    """Make an account of the victim's tenant that has these roles on these resources."""

    def work(tx: Transaction) -> str:
        group = insert(tx, "group", GROUP, cloud.victim.ids["tenant"], who)
        for role, resource_id in roles:
            spec = contract.message("nebius.iam.v1.AccessPermitSpec")(resource_id=resource_id, role=role)
            text = spec.SerializeToString()
            insert(tx, "accesspermit", ACCESS_PERMIT, group.id, spec=text, owner_id=group.id)
        return add_account(tx, cloud.victim.ids["project"], who, group)

    account = await cloud.store.write(work)
    token, _ = await token_issuer(cloud.store, SystemClock())(account, timedelta(minutes=10))
    cloud.tokens[who] = token


async def readable(cloud: WalkedCloud, token: str) -> set[str]:
    """Return the ids of all resources that this caller can read with the Get method of their kind."""
    rows = await cloud.store.read(
        lambda tx: [row for kind in TABLE.kinds if "Get" in kind.verbs for row in tx.list(kind.message)[0]]
    )
    services = {kind.message: kind.rpc for kind in TABLE.kinds}
    found = set[str]()
    for row in rows:
        is_tenant = row.kind == CONTAINER and not row.parent_id
        service = "nebius.iam.v2.TenantService" if is_tenant else services[row.kind]
        request = contract.method(f"{service}/Get").input()
        _set_id(request, row.id)
        if (await cloud.send(f"{service}/Get", request, token)).code == "OK":
            found.add(row.id)
    return found


def _set_id(request: Any, identifier: str) -> None:
    if request.DESCRIPTOR.fields_by_name["id"].message_type is not None:
        request.id.id = identifier
    else:
        request.id = identifier


async def test_everybody_finds_exactly_what_they_can_get(cloud: WalkedCloud) -> None:
    held = cloud.victim.ids
    places = [held["project"], held["tenant"], held["storagebucket"], held["vpcsecuritygroup"]]
    for at, role in enumerate(ROLES):
        await grant(cloud, role, [(role, places[at % len(places)])])
    await grant(cloud, "several", [("compute.viewer", held["project"]), ("vpc.viewer", held["tenant"])])
    await grant(cloud, "single", [("viewer", held["aijob"]), ("viewer", held["vpcroutetable"])])
    await grant(cloud, "foreign", [("admin", cloud.outsider.ids["project"])])
    await grant(cloud, "nothing", [])
    counts = set[int]()
    for who, token in cloud.tokens.items():
        if who == "expired":
            continue
        allowed = await readable(cloud, token)
        found = await ids(cloud, who, page_size=7)
        assert sorted(found) == sorted(allowed), who
        counts.add(len(found))
        for parent in (held["project"], held["tenant"], held["group"], cloud.outsider.ids["project"]):
            inside = await ids(cloud, who, parent_ids=[parent])
            rows = await cloud.store.read(lambda tx, of=parent: tx.children(of))
            assert sorted(inside) == sorted(allowed & {row.id for row in rows}), (who, parent)
        assert set(await ids(cloud, who, ids=[*held.values()])) == allowed & {*held.values()}, who
    assert max(counts) > 40 and min(counts) == 1 and len(counts) > len(ROLES), counts


async def test_a_result_says_what_it_is(cloud: WalkedCloud) -> None:
    cluster = cloud.victim.ids["slurmcluster"]
    (item,) = (await find(cloud, "viewer", ids=[cluster])).items
    row = await cloud.store.read(lambda tx: tx.get(cluster))
    assert row is not None
    assert (item.kind, item.id, item.name) == ("neocloud.slurm.v1.Cluster", cluster, cloud.victim.name)
    assert (item.parent_id, item.state) == (cloud.victim.ids["project"], row.state)
    assert contract.to_datetime(item.created_at) == row.created_at


async def test_a_name_is_found_in_all_kinds_or_in_those_requested(cloud: WalkedCloud) -> None:
    name, project = cloud.victim.name, cloud.victim.ids["project"]
    found = await find(cloud, "victim", name=name, parent_ids=[project])
    assert len(found.items) > 20 and not found.unreadable_kinds
    kinds = ["nebius.compute.v1.Instance", "neocloud.slurm.v1.Cluster", "neocloud.none.v1.None"]
    found = await find(cloud, "victim", name=name, parent_ids=[project], kinds=kinds)
    assert [item.kind for item in found.items] == kinds[:2] and not found.unreadable_kinds


async def test_kinds_that_the_caller_may_not_read_are_named(cloud: WalkedCloud) -> None:
    project, kinds = cloud.victim.ids["project"], ["nebius.compute.v1.Instance", "neocloud.slurm.v1.Cluster"]
    await grant(cloud, "of slurm", [("slurm.viewer", project)])
    for conditions in ({"parent_ids": [project]}, {}, {"ids": ["computeinstance-e00none"]}):
        found = await find(cloud, "of slurm", kinds=kinds, **conditions)
        assert list(found.unreadable_kinds) == kinds[:1], conditions
    await grant(cloud, "of nothing", [])
    assert list((await find(cloud, "of nothing", kinds=kinds)).unreadable_kinds) == kinds


async def test_a_search_without_a_result_leaves_no_line_in_the_log(
    cloud: WalkedCloud, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="neocloud"):
        assert not await ids(cloud, "victim", name="lost")
        assert not await ids(cloud, "outsider", ids=[*cloud.victim.ids.values()])
    assert not caplog.records


async def test_a_static_key_finds_what_it_is_for(cloud: WalkedCloud) -> None:
    """The key is of an admin, and for the container registry alone."""
    spec = contract.message("nebius.iam.v1.StaticKeySpec")()
    spec.service = spec.ClientService.Value("CONTAINER_REGISTRY")

    def work(tx: Transaction) -> None:
        row = tx.get(cloud.victim.ids["statickey"])
        assert row is not None and row.kind == STATIC_KEY
        tx.update(replace(row, spec=spec.SerializeToString()))

    await cloud.store.write(work)
    cloud.tokens["key"] = cloud.victim.static_token
    assert await ids(cloud, "key") == [cloud.victim.ids["registry"]]
