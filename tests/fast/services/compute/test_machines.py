"""Instances reach their desired state with a fake engine: CMP-01, CMP-12, CMP-13."""

import base64
import json
from collections.abc import AsyncIterator

import pytest

from neocloud.engines.base import Reference
from neocloud.services.compute.types import InstanceStateEnum
from tests.fast.services.compute import network
from tests.fast.services.compute.cloud import Cloud, instance_spec, machine_cloud


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[Cloud]:
    async with machine_cloud(tmp_path) as running:
        yield running


async def test_a_machine_runs_with_its_disk_and_addresses(cloud: Cloud) -> None:
    instance = await cloud.machine("one")
    (interface,) = instance.status.network_interfaces
    assert interface.ip_address.address == f"{network.PRIVATE}.4/32"
    assert interface.public_ip_address.address == f"{network.PUBLIC}.4/32"
    assert interface.fqdn == f"{instance.metadata.id}.default-network.internal"
    (disk,) = instance.status.disk_attachments
    assert (disk.name, disk.is_managed) == ("one-boot", True)
    desired = cloud.machines.desired(instance.metadata.id)
    assert (desired["name"], desired["parent_id"]) == ("one", instance.metadata.parent_id)
    assert desired["region"] == "eu-north1"
    assert desired["disks"][0] | {"id": "", "size_bytes": 0} == {
        "id": "",
        "encrypted": True,
        "path": "/disks/0/disk.qcow2",
        "size_bytes": 0,
        "read_only": False,
        "limits": {
            "read_operations": 20_000,
            "write_operations": 40_000,
            "read_bytes": 450 << 20,
            "write_bytes": 450 << 20,
        },
        "device_id": "boot",
        "is_boot": True,
    }
    assert cloud.pod(instance.metadata.id).ip == f"{network.PRIVATE}.4"
    assert await cloud.history(instance.metadata.id) == ["STARTING", "RUNNING"]


async def test_a_machine_is_starting_from_the_moment_it_is_created(cloud: Cloud) -> None:
    identifier = await cloud.create("Instance", "one", instance_spec())
    states = await cloud.history(identifier)
    assert states[0] == "STARTING"
    await cloud.until(identifier, "RUNNING")


async def test_a_stopped_machine_keeps_its_addresses_and_disks(cloud: Cloud) -> None:
    before = await cloud.machine("one")
    identifier = before.metadata.id
    operation = await cloud.call("InstanceService/Stop", id=identifier)
    assert InstanceStateEnum.Name((await cloud.get("Instance", identifier)).status.state) in (
        "STOPPING",
        "STOPPED",
    )
    stopped = await cloud.until(identifier, "STOPPED")
    assert operation.resource_id == identifier
    assert cloud.pod(identifier) is None
    assert stopped.spec.stopped
    await cloud.call("InstanceService/Start", id=identifier)
    assert InstanceStateEnum.Name((await cloud.get("Instance", identifier)).status.state) in (
        "STARTING",
        "RUNNING",
    )
    after = await cloud.until(identifier, "RUNNING")
    assert after.status.network_interfaces == before.status.network_interfaces
    assert after.status.disk_attachments == before.status.disk_attachments
    assert await cloud.history(identifier) == [
        "STARTING",
        "RUNNING",
        "STOPPING",
        "STOPPED",
        "STARTING",
        "RUNNING",
    ]


async def test_deleting_leaves_nothing(cloud: Cloud) -> None:
    instance = await cloud.machine("one")
    disk_id = instance.status.disk_attachments[0].id
    await cloud.call("InstanceService/Delete", id=instance.metadata.id)
    await cloud.gone(instance.metadata.id)
    await cloud.gone(disk_id)
    assert [name for name in cloud.engine.world.namespaces if name] == [network.NETWORK_ID]
    assert not cloud.engine.world.pods and not cloud.engine.world.volumes
    assert not await cloud.running.store.read(lambda tx: tx.list("nebius.vpc.v1.Allocation")[0])


async def test_the_user_data_gets_its_missing_first_line(cloud: Cloud) -> None:
    instance = await cloud.machine("one", cloud_init_user_data="users:\n- name: ubuntu\n")
    assert (
        cloud.machines.desired(instance.metadata.id)["user_data"] == "#cloud-config\nusers:\n- name: ubuntu\n"
    )
    assert instance.spec.cloud_init_user_data == "users:\n- name: ubuntu\n"


async def test_a_service_accounts_token_reaches_the_guest(cloud: Cloud) -> None:
    metadata = {"parent_id": cloud.project_id, "name": "robot"}
    made = await cloud.call("nebius.iam.v1.ServiceAccountService/Create", metadata=metadata)
    instance = await cloud.machine("one", service_account_id=made.resource_id)
    secret = cloud.engine.world.objects[Reference("Secret", instance.metadata.id, "identity")].to_dict()
    token = json.loads(base64.b64decode(secret["data"]["token.json"]))
    assert token["token_type"] == "Bearer" and token["expires_at"].endswith("Z")
    profile = await cloud.call("nebius.iam.v1.ProfileService/Get")
    assert profile
    assert token["access_token"].count(".") == 2


async def test_a_taken_name_is_said_of_the_instance_and_not_of_its_disk(cloud: Cloud) -> None:
    """The boot disk's name follows from the instance's, so both are taken."""
    first = (await cloud.machine("web")).metadata.id
    request = {"metadata": {"parent_id": cloud.project_id, "name": "web"}, "spec": instance_spec()}
    refused = await cloud.refusal("InstanceService/Create", request)
    assert refused.code.name == "ALREADY_EXISTS"
    assert refused.message.startswith("An instance named 'web' exists already.")
    assert first in str(refused.details)
    request["metadata"]["name"] = "other"
    refused = await cloud.refusal("InstanceService/Create", request)
    assert "the name of the disk computedisk-" in refused.message
