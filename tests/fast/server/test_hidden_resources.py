"""Every served method, asked by an account of the same tenant without a role where the resource lies: what
exists there is answered like what does not exist, over gRPC and over JSON. IAM-02.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from google.protobuf.json_format import MessageToJson

from neocloud.core.contract import Code
from tests.fast.server.test_security_walk import guarded
from tests.fast.server.walk.asking import request
from tests.fast.server.walk.cloud import TABLE, WalkedCloud, walked_cloud
from tests.fast.server.walk.holdings import Holdings, nothing_like

pytestmark = pytest.mark.slow


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[WalkedCloud]:
    async with walked_cloud(tmp_path) as ready:
        yield ready


def held_by_others(cloud: WalkedCloud) -> Holdings:
    """Return the holdings of the victim's project; the first operation is of a cluster there."""
    operations = {"slurmcluster": cloud.victim.operations["slurmcluster"]}
    return replace(cloud.victim, operations=operations)


def elsewhere(cloud: WalkedCloud) -> Holdings:
    """Ids that lead nowhere, in the tenant of the colleague, of which every account knows."""
    missing, victim = nothing_like(held_by_others(cloud)), cloud.victim
    tenant = victim.ids["tenant"]
    parents = {
        prefix: tenant if victim.parents.get(prefix) == tenant else parent
        for prefix, parent in missing.parents.items()
    }
    return replace(missing, ids={**missing.ids, "tenant": tenant}, parents=parents)


async def test_a_colleague_cannot_tell_what_exists_in_another_project(cloud: WalkedCloud) -> None:
    held, missing, told = held_by_others(cloud), elsewhere(cloud), []
    for path in guarded(cloud):
        there = await cloud.ask(path, held, cloud.tokens["colleague"])
        nowhere = await cloud.ask(path, missing, cloud.tokens["colleague"])
        if there.seen_as(held) != nowhere.seen_as(missing):
            told.append((path, there.seen_as(held), nowhere.seen_as(missing)))
    assert not told, "\n".join(map(str, told))


async def test_json_tells_no_more(cloud: WalkedCloud) -> None:
    held, missing, told = held_by_others(cloud), elsewhere(cloud), []
    headers = {"authorization": f"Bearer {cloud.tokens['colleague']}"}
    paths = [path for path in guarded(cloud) if path.rpartition("/")[2] in ("Get", "GetByName", "List")]
    async with httpx.AsyncClient(base_url=f"http://{cloud.server.addresses.http}", headers=headers) as client:

        async def said(path: str, held: Holdings) -> tuple[int, str]:
            body = MessageToJson(request(path, TABLE, held))
            answer = await client.post(f"/{path}", content=body)
            return answer.status_code, held.normal(answer.json().get("message", ""))

        for path in paths:
            there, nowhere = await said(path, held), await said(path, missing)
            if there != nowhere:
                told.append((path, there, nowhere))
    assert not told and len(paths) > 50


async def test_the_refusal_names_the_permission_and_the_audit_log_the_true_reason(cloud: WalkedCloud) -> None:
    cluster = cloud.victim.ids["slurmcluster"]
    answer = await cloud.ask("neocloud.slurm.v1.ClusterService/Get", cloud.victim, cloud.tokens["colleague"])
    assert answer.code == "NOT_FOUND"
    assert '"slurm.clusters.get"' in answer.message and "slurm.viewer" in answer.message
    events, _ = await cloud.store.read(lambda tx: tx.list_audit(resource_id=cluster))
    assert events[0].code == Code.PERMISSION_DENIED and "slurm.viewer" in events[0].message


async def test_an_admin_is_told_no_permission_where_there_is_nothing(cloud: WalkedCloud) -> None:
    answer = await cloud.ask("neocloud.slurm.v1.ClusterService/Get", elsewhere(cloud), cloud.tokens["victim"])
    assert answer.code == "NOT_FOUND" and "permission" not in answer.message
