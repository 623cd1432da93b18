"""Preemption and maintenance of an instance, as the official SDK sees them."""

from collections.abc import Callable
from typing import Any

import pytest
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    AttachedDiskSpec,
    CreateInstanceRequest,
    DeleteInstanceRequest,
    DiskSpec,
    GetInstanceRequest,
    GetMaintenanceEventByInstanceRequest,
    InstanceServiceClient,
    InstanceSpec,
    InstanceStatus,
    IPAddress,
    MaintenanceServiceClient,
    ManagedDisk,
    NetworkInterfaceSpec,
    PreemptibleSpec,
    ResourcesSpec,
    SourceImageFamily,
    StartInstanceRequest,
)
from nebius.api.nebius.vpc.v1 import ListSubnetsRequest, SubnetServiceClient
from nebius.sdk import SDK

from neocloud.client.errors import ClientError
from neocloud.testing.emulator import Emulator
from neocloud.testing.waiting import wait_until

State = InstanceStatus.InstanceState
DEADLINE_SECONDS = 60.0
Create = Callable[..., str]


@pytest.fixture
def create(neocloud_emulator: Emulator, sdk: SDK, new_name: Callable[[], str]) -> Create:
    """Make an instance on the subnet that the project was born with; its id."""
    project_id = neocloud_emulator.project_id
    subnets = SubnetServiceClient(sdk).list(ListSubnetsRequest(parent_id=project_id)).wait().items

    def create(**more: Any) -> str:
        name = new_name()
        disk = DiskSpec(
            type=DiskSpec.DiskType.NETWORK_SSD,
            size_gibibytes=10,
            source_image_family=SourceImageFamily(image_family="ubuntu24.04-driverless"),
        )
        boot_disk = AttachedDiskSpec(
            attach_mode=AttachedDiskSpec.AttachMode.READ_WRITE,
            managed_disk=ManagedDisk(name=f"{name}-boot", spec=disk),
        )
        interface = NetworkInterfaceSpec(
            name="eth0", subnet_id=subnets[0].metadata.id, ip_address=IPAddress()
        )
        spec = InstanceSpec(
            resources=ResourcesSpec(platform="gpu-h100-sxm", preset="1gpu-16vcpu-200gb"),
            boot_disk=boot_disk,
            network_interfaces=[interface],
            **more,
        )
        request = CreateInstanceRequest(metadata=ResourceMetadata(parent_id=project_id, name=name), spec=spec)
        operation = InstanceServiceClient(sdk).create(request).wait()
        assert operation.done() and operation.successful(), operation
        return operation.resource_id

    return create


def state_of(sdk: SDK, instance_id: str) -> Any:
    return InstanceServiceClient(sdk).get(GetInstanceRequest(id=instance_id)).wait().status.state


def comes_to_be(sdk: SDK, instance_id: str, state: Any) -> None:
    wait_until(
        lambda: state_of(sdk, instance_id),
        f"{instance_id} is {state}",
        holds=lambda found: found == state,
        seconds=DEADLINE_SECONDS,
    )


def test_an_instance_runs_when_create_answers_and_is_gone_when_delete_does(sdk: SDK, create: Create) -> None:
    instance_id = create()
    instance = InstanceServiceClient(sdk).get(GetInstanceRequest(id=instance_id)).wait()
    assert instance.status.state == State.RUNNING
    assert instance.status.network_interfaces[0].ip_address.address
    assert InstanceServiceClient(sdk).delete(DeleteInstanceRequest(id=instance_id)).wait().successful()


def test_a_preempted_instance_is_stopped_until_it_is_started(
    neocloud_emulator: Emulator, sdk: SDK, create: Create
) -> None:
    policy = PreemptibleSpec(on_preemption=PreemptibleSpec.PreemptionPolicy.STOP, priority=1)
    instance_id = create(preemptible=policy, recovery_policy=_fail())
    fault = neocloud_emulator.inject("preemption", resource_id=instance_id)
    assert "Preempted" in fault.effect
    comes_to_be(sdk, instance_id, State.STOPPED)
    operation = InstanceServiceClient(sdk).start(StartInstanceRequest(id=instance_id)).wait()
    assert operation.successful()
    assert state_of(sdk, instance_id) == State.RUNNING


def _fail() -> Any:
    return type(InstanceSpec().recovery_policy).FAIL


def test_what_is_not_preemptible_is_not_preempted(neocloud_emulator: Emulator, create: Create) -> None:
    with pytest.raises(ClientError, match="not preemptible"):
        neocloud_emulator.inject("preemption", resource_id=create())


def test_maintenance_is_announced_on_the_instance(
    neocloud_emulator: Emulator, sdk: SDK, create: Create
) -> None:
    instance_id = create()
    neocloud_emulator.inject("maintenance", resource_id=instance_id, delay_seconds=3600)
    request = GetMaintenanceEventByInstanceRequest(instance_id=instance_id)
    event = MaintenanceServiceClient(sdk).get_by_instance(request).wait()
    instance = InstanceServiceClient(sdk).get(GetInstanceRequest(id=instance_id)).wait()
    assert instance.status.maintenance_event_id == event.id
    deadline, created = event.status.sla_deadline_ts, event.status.created_at
    assert deadline and created and (deadline - created).total_seconds() == 3600
    assert instance.status.state == State.RUNNING


def test_a_crashed_machine_comes_back(neocloud_emulator: Emulator, sdk: SDK, create: Create) -> None:
    instance_id = create()
    fault = neocloud_emulator.inject("pod-crash", resource_id=instance_id)
    assert fault.effect == f"Crashed: {instance_id}."
    comes_to_be(sdk, instance_id, State.RUNNING)


def test_a_crashed_machine_stays_down_where_its_policy_says_so(
    neocloud_emulator: Emulator, sdk: SDK, create: Create
) -> None:
    instance_id = create(recovery_policy=_fail())
    neocloud_emulator.inject("pod-crash", resource_id=instance_id)
    comes_to_be(sdk, instance_id, State.STOPPED)
