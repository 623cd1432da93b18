"""Work that takes time: pending operations, and what may be asked meanwhile."""

from dataclasses import replace
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.core.store import Transaction
from tests.fast.server.conftest import OUTSIDER, PROJECT, READER, Cloud

SERVICE = "neocloud.slurm.v1.ClusterService"
SPEC = {"nodeSets": [{"name": "cpu", "platform": "cpu-d3", "preset": "4vcpu-16gb", "count": 2}]}


async def create(cloud: Cloud, name: str = "bank") -> dict[str, Any]:
    body = {"metadata": {"parentId": PROJECT, "name": name}, "spec": SPEC}
    answer = await cloud.call(f"{SERVICE}/Create", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def scale(cloud: Cloud, identifier: str, count: int, **headers: str) -> Any:
    body = {"metadata": {"id": identifier}, "spec": {"nodeSets": [{"name": "cpu", "count": count}]}}
    return await cloud.call(f"{SERVICE}/Update", body, **headers)


async def operation(cloud: Cloud, identifier: str) -> dict[str, Any]:
    answer = await cloud.call("nebius.common.v1.OperationService/Get", {"id": identifier})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_operation_is_pending_until_its_resource_is_settled(cloud: Cloud) -> None:
    pending = await create(cloud)
    assert "status" not in pending and "finishedAt" not in pending
    assert cloud.notified
    cluster = (await cloud.call(f"{SERVICE}/Get", {"id": pending["resourceId"]})).json()
    assert (cluster["status"]["state"], cluster["status"]["reconciling"]) == ("CREATING", True)
    await cloud.settle(pending["resourceId"])
    done = await operation(cloud, pending["id"])
    assert done["status"] == {} and done["finishedAt"]


async def test_the_request_is_kept_with_its_operation(cloud: Cloud) -> None:
    pending = await create(cloud)
    assert pending["request"]["@type"] == "type.googleapis.com/neocloud.slurm.v1.CreateClusterRequest"
    assert pending["request"]["metadata"]["name"] == "bank"
    await cloud.settle(pending["resourceId"])
    mask = "spec.node_sets.0.count"
    updated = await scale(cloud, pending["resourceId"], 0, **{"x-resetmask": mask})
    assert updated.json()["requestHeaders"] == {"x-resetmask": {"values": [mask]}}


async def test_the_id_of_the_request_is_stored_with_its_operation(cloud: Cloud) -> None:
    body = {"metadata": {"parentId": PROJECT, "name": "bank"}, "spec": SPEC}
    answer = await cloud.call(f"{SERVICE}/Create", body)
    assert answer.status_code == 200, answer.text
    row = await cloud.store.read(lambda tx: tx.get_operation(answer.json()["id"]))
    assert row is not None and row.request_id == answer.headers["x-request-id"]


async def test_an_update_beside_an_unfinished_create_is_refused(cloud: Cloud) -> None:
    pending = await create(cloud)
    refused = await scale(cloud, pending["resourceId"], 3)
    assert (refused.status_code, refused.json()["code"]) == (400, "failed_precondition")
    detail = refused.json()["details"][0]["debug"]["operationConflict"]
    assert detail["conflictingOperationId"] == pending["id"]


async def test_a_later_update_replaces_an_unfinished_one(cloud: Cloud) -> None:
    pending = await create(cloud)
    await cloud.settle(pending["resourceId"])
    first = (await scale(cloud, pending["resourceId"], 3)).json()
    second = (await scale(cloud, pending["resourceId"], 4)).json()
    assert (await operation(cloud, first["id"]))["status"]["code"] == contract.Code.ABORTED
    assert "status" not in await operation(cloud, second["id"])
    found = (await cloud.call(f"{SERVICE}/Get", {"id": pending["resourceId"]})).json()
    assert found["spec"]["nodeSets"][0]["count"] == "4"
    assert found["metadata"]["resourceVersion"] == "3"


async def test_a_resource_is_reconciling_from_the_moment_its_spec_changes(cloud: Cloud) -> None:
    pending = await create(cloud)
    await cloud.settle(pending["resourceId"])

    async def is_reconciling() -> bool:
        found = (await cloud.call(f"{SERVICE}/Get", {"id": pending["resourceId"]})).json()
        return found.get("status", {}).get("reconciling", False)

    labels = {"metadata": {"id": pending["resourceId"], "labels": {"a": "b"}}}
    assert (await cloud.call(f"{SERVICE}/Update", labels)).status_code == 200
    assert not await is_reconciling()
    assert (await scale(cloud, pending["resourceId"], 3)).status_code == 200
    assert await is_reconciling()


async def test_a_repeated_request_waits_until_it_is_fulfilled(cloud: Cloud) -> None:
    pending = await create(cloud)
    await cloud.settle(pending["resourceId"])
    await scale(cloud, pending["resourceId"], 3)
    again = (await scale(cloud, pending["resourceId"], 3)).json()
    assert "status" not in again
    await cloud.settle(pending["resourceId"])
    assert (await operation(cloud, again["id"]))["status"] == {}
    assert (await scale(cloud, pending["resourceId"], 3)).json()["status"] == {}


async def test_scaling_to_none_needs_the_mask(cloud: Cloud) -> None:
    pending = await create(cloud)
    await cloud.settle(pending["resourceId"])
    unchanged = await scale(cloud, pending["resourceId"], 0)
    assert unchanged.json()["status"] == {}
    await scale(cloud, pending["resourceId"], 0, **{"x-resetmask": "spec.node_sets.*.count"})
    found = (await cloud.call(f"{SERVICE}/Get", {"id": pending["resourceId"]})).json()
    assert "count" not in found["spec"]["nodeSets"][0]


async def test_the_merged_result_is_what_is_validated(cloud: Cloud) -> None:
    pending = await create(cloud)
    await cloud.settle(pending["resourceId"])
    only_labels = {"metadata": {"id": pending["resourceId"], "labels": {"a": "b"}}}
    assert (await cloud.call(f"{SERVICE}/Update", only_labels)).status_code == 200
    refused = await scale(cloud, pending["resourceId"], -1)
    violation = refused.json()["details"][0]["debug"]["badRequest"]["violations"][0]
    assert violation["field"] == "spec.node_sets[0].count"


async def test_delete_aborts_what_is_unfinished_and_may_be_repeated(cloud: Cloud) -> None:
    pending = await create(cloud)
    first = (await cloud.call(f"{SERVICE}/Delete", {"id": pending["resourceId"]})).json()
    again = (await cloud.call(f"{SERVICE}/Delete", {"id": pending["resourceId"]})).json()
    assert first["id"] == again["id"] and "status" not in first
    assert (await operation(cloud, pending["id"]))["status"]["code"] == contract.Code.ABORTED
    found = (await cloud.call(f"{SERVICE}/Get", {"id": pending["resourceId"]})).json()
    assert found["status"]["state"] == "DELETING"
    refused = await scale(cloud, pending["resourceId"], 3)
    assert "is being deleted" in refused.json()["message"]


async def test_the_operations_of_a_gone_resource_can_still_be_read(cloud: Cloud) -> None:
    pending = await create(cloud)
    deleted = (await cloud.call(f"{SERVICE}/Delete", {"id": pending["resourceId"]})).json()
    await cloud.store.write(lambda tx: tx.delete(pending["resourceId"]))
    listed = await cloud.call(
        "nebius.common.v1.OperationService/List", {"resourceId": pending["resourceId"], "pageSize": 1}
    )
    assert [each["id"] for each in listed.json()["operations"]] == [deleted["id"]]
    assert listed.json()["nextPageToken"]
    old = await cloud.call("nebius.common.v1alpha1.OperationService/Get", {"id": pending["id"]})
    assert old.json()["resourceId"] == pending["resourceId"]


@pytest.mark.parametrize(("token", "status"), [(READER, 200), (OUTSIDER, 403)])
async def test_others_follow_an_operation_with_the_right_to_its_resource(
    cloud: Cloud, token: str, status: int
) -> None:
    pending = await create(cloud)
    bearer = {"authorization": f"Bearer {token}"}
    got = await cloud.call("nebius.common.v1.OperationService/Get", {"id": pending["id"]}, **bearer)
    listed = await cloud.call(
        "nebius.common.v1.OperationService/List", {"resourceId": pending["resourceId"]}, **bearer
    )
    assert (got.status_code, listed.status_code) == (status, status)


async def test_a_parent_with_children_stays_and_names_them(cloud: Cloud) -> None:
    pending = await create(cloud)
    child = {
        "metadata": {"parentId": pending["resourceId"], "name": "scratch"},
        "spec": {"type": 1, "sizeGibibytes": 1},
    }
    assert (await cloud.call("nebius.compute.v1.FilesystemService/Create", child)).status_code == 200
    refused = await cloud.call(f"{SERVICE}/Delete", {"id": pending["resourceId"]})
    assert refused.json()["code"] == "failed_precondition"
    assert "scratch (Filesystem)" in refused.json()["message"]


async def test_nothing_new_goes_into_a_parent_that_is_being_deleted(cloud: Cloud) -> None:
    pending = await create(cloud)
    await cloud.call(f"{SERVICE}/Delete", {"id": pending["resourceId"]})
    child = {
        "metadata": {"parentId": pending["resourceId"], "name": "scratch"},
        "spec": {"type": 1, "sizeGibibytes": 1},
    }
    refused = await cloud.call("nebius.compute.v1.FilesystemService/Create", child)
    assert refused.json()["code"] == "failed_precondition"


async def test_a_part_of_a_whole_is_changed_through_the_whole(cloud: Cloud) -> None:
    """Its owner's reconciler would only put it back."""
    whole, part = await create(cloud, "whole"), await create(cloud, "part")

    def own(tx: Transaction) -> None:
        row = tx.get(part["resourceId"])
        assert row is not None
        tx.update(replace(row, owner_id=whole["resourceId"]))

    await cloud.store.write(own)
    await cloud.settle(part["resourceId"])
    deleted = await cloud.call(f"{SERVICE}/Delete", {"id": part["resourceId"]})
    scaled = await scale(cloud, part["resourceId"], 9)
    assert {deleted.json()["code"], scaled.json()["code"]} == {"failed_precondition"}
    assert whole["resourceId"] in deleted.json()["message"]
