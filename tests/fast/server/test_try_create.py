"""A request to create that is tried: it is refused as it would be, and leaves nothing."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.server.verbs.try_create import PATH
from tests.control_plane import Cloud, cloud_in_process, sign_in
from tests.fast.services.iam import keys

DISK = "nebius.compute.v1.CreateDiskRequest"


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with cloud_in_process(tmp_path) as started:
        yield started


def packed(cloud: Cloud, message: str, spec: dict[str, Any], name: str = "data") -> Any:
    content = {"metadata": {"parent_id": cloud.project_id, "name": name}, "spec": spec}
    return contract.pack(contract.from_dict(contract.message(message), content))


async def tried(cloud: Cloud, message: str, spec: dict[str, Any], name: str = "data", **more: Any) -> Any:
    request = contract.method(PATH).input(request=packed(cloud, message, spec, name), **more)
    return contract.unpack((await cloud.call(PATH, request)).resource)


async def refused(cloud: Cloud, message: str, spec: dict[str, Any], name: str = "data") -> contract.ApiError:
    return await cloud.refusal(PATH, contract.method(PATH).input(request=packed(cloud, message, spec, name)))


async def stored(cloud: Cloud) -> Any:
    def read(tx: Any) -> Any:
        rows = [
            (row.id, row.resource_version)
            for row in tx.list(contract.message("nebius.compute.v1.Disk").DESCRIPTOR.full_name)[0]
        ]
        return (
            rows,
            [each.id for each in tx.list_operations()[0]],
            {name: count for name, count in tx.counters(cloud.project_id).items() if name != "history.size"},
        )

    return await cloud.running.store.read(read)


async def test_nothing_is_left_and_the_defaults_are_told(cloud: Cloud) -> None:
    before = await stored(cloud)
    disk = await tried(cloud, DISK, {"size_gibibytes": 20, "type": "NETWORK_SSD"})
    assert (disk.metadata.name, disk.metadata.id, disk.spec.size_gibibytes) == ("data", "", 20)
    assert not disk.HasField("status")
    assert await stored(cloud) == before
    cluster = await tried(
        cloud,
        "neocloud.slurm.v1.CreateClusterRequest",
        {"node_sets": [{"name": "worker", "platform": "cpu-local", "preset": "1vcpu-1gb", "count": 1}]},
    )
    assert cluster.spec.shared_root.size_gibibytes == 64
    assert await stored(cloud) == before


async def test_secrets_do_not_come_back(cloud: Cloud) -> None:
    spec = {
        "image": "localhost/team/web:v1",
        "platform": "cpu-local",
        "preset": "1vcpu-1gb",
        "disk": {"type": "NETWORK_SSD"},
        "environment_variables": [{"name": "KEY", "value": "hunter2-of-ann"}],
    }
    endpoint = await tried(
        cloud, "nebius.ai.v1.CreateEndpointRequest", spec, "web", assumed_fields=["spec.image"]
    )
    [variable] = endpoint.spec.environment_variables
    assert (variable.name, variable.value) == ("KEY", "")


async def test_it_is_refused_as_the_request_would_be(cloud: Cloud) -> None:
    made = await cloud.call(
        "nebius.compute.v1.DiskService/Create",
        contract.unpack(packed(cloud, DISK, {"size_gibibytes": 1, "type": "NETWORK_SSD"})),
    )
    assert made.resource_id
    taken = await refused(cloud, DISK, {"size_gibibytes": 1, "type": "NETWORK_SSD"})
    assert taken.code.name == "ALREADY_EXISTS"
    without = await refused(cloud, DISK, {"size_gibibytes": 1}, "other")
    assert without.code.name == "INVALID_ARGUMENT" and "spec.type" in str(without.message)


async def test_a_quota_and_a_full_machine_are_told(cloud: Cloud) -> None:
    spec = {"node_sets": [{"name": "worker", "platform": "cpu-local", "preset": "1vcpu-1gb", "count": 400}]}
    full = await refused(cloud, "neocloud.slurm.v1.CreateClusterRequest", spec)
    assert full.code.name == "RESOURCE_EXHAUSTED"


async def test_what_creates_nothing_is_refused(cloud: Cloud) -> None:
    for message in (
        contract.message("nebius.compute.v1.GetDiskRequest")(id="x"),
        contract.message("nebius.compute.v1.Disk")(),
    ):
        error = await cloud.refusal(PATH, contract.method(PATH).input(request=contract.pack(message)))
        assert error.code.name == "INVALID_ARGUMENT" and "creates nothing" in error.message
    unknown = contract.message("google.protobuf.Any")(
        type_url="type.googleapis.com/no.such.Message", value=b"x"
    )
    error = await cloud.refusal(PATH, contract.method(PATH).input(request=unknown))
    assert error.code.name == "INVALID_ARGUMENT"
    error = await cloud.refusal(PATH, {})
    assert error.code.name == "INVALID_ARGUMENT"


async def test_who_may_not_create_may_not_try_and_that_is_recorded(cloud: Cloud) -> None:
    request = contract.method(PATH).input(
        request=packed(cloud, DISK, {"size_gibibytes": 1, "type": "NETWORK_SSD"})
    )
    cloud.token, operator = await token_of_nobody(cloud), cloud.token
    error = await cloud.refusal(PATH, request)
    assert error.code.name == "PERMISSION_DENIED" and "compute.disks.create" in error.message
    cloud.token = operator
    now = datetime.now(UTC)
    asked = {"parent_id": cloud.tenant_id, "event_type": "CONTROL_PLANE", "region": "eu-north1"}
    asked |= {"start": (now - timedelta(hours=1)).isoformat(), "end": (now + timedelta(hours=1)).isoformat()}
    events = (await cloud.call("nebius.audit.v2.AuditEventService/List", asked)).items
    assert any("DiskService" in event.source and "PERMISSION_DENIED" in str(event) for event in events)


async def token_of_nobody(cloud: Cloud) -> str:
    """Return a token of an account without any role."""
    metadata = {"parent_id": cloud.project_id, "name": "nobody"}
    made = await cloud.call("nebius.iam.v1.ServiceAccountService/Create", {"metadata": metadata})
    pair = keys.key_pair("RS256")
    spec = {"account": {"service_account": {"id": made.resource_id}}, "data": pair.public_pem}
    key = await cloud.call(
        "nebius.iam.v1.AuthPublicKeyService/Create",
        {"metadata": {"parent_id": cloud.project_id}, "spec": spec},
    )
    return await sign_in(cloud.channel, pair.credentials(key.resource_id, made.resource_id))
