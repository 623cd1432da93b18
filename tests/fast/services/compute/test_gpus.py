"""GPUs of machines: each is one machine's, passed by VFIO; a machine that cannot have its GPU is refused and
not charged (CMP-01). The engine is a fake, so that everything here is simulated."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from neocloud.core.store.protocol import Transaction
from neocloud.engines.base import Accelerator, Reference
from neocloud.engines.fake.world import ContainerState
from neocloud.engines.gpu_ledger import GPU_NAMESPACE, GpuLedger, leave_to_pod, pod_holder
from neocloud.services.compute import InstanceMeter
from tests.fast.services.compute.cloud import Cloud, boot_disk, instance_spec, machine_cloud

SHAPE = {"platform": "gpu-local", "preset": "1gpu-2vcpu-8gb"}
GPUS = tuple(
    Accelerator(
        "nvidia", "NVIDIA L40S", 46068, index, f"0000:0{index + 1}:00.0", str(10 + index), f"GPU-{index}"
    )
    for index in range(2)
)
BLOCKED = replace(
    GPUS[0], obstacle="it shares IOMMU group 10 with 0000:02:00.0 (driver nvme), which this host uses"
)


@pytest.fixture
async def cloud(tmp_path):
    async with machine_cloud(tmp_path, accelerators=GPUS) as running:
        yield running


def devices(cloud: Cloud, instance_id: str) -> set[str]:
    volumes = cloud.pod(instance_id).manifest.to_dict()["spec"]["volumes"]
    return {volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}


async def test_each_machine_has_gpus_of_its_own(cloud: Cloud) -> None:
    addresses = []
    for name in ("one", "two"):
        instance = await cloud.machine(name, resources=SHAPE, boot_disk=boot_disk(f"{name}-boot"))
        addresses.append(cloud.machines.desired(instance.metadata.id)["gpus"])
        assert "/dev/vfio/vfio" in devices(cloud, instance.metadata.id)
    assert sorted(addresses) == [["0000:01:00.0"], ["0000:02:00.0"]]
    assert devices(cloud, instance.metadata.id) >= {"/dev/vfio/11"}


async def test_of_two_kinds_of_gpu_a_machine_gets_the_one_it_asked_for(tmp_path) -> None:
    """The host lists the other kind first."""
    h100 = replace(GPUS[1], model="NVIDIA H100 80GB HBM3", memory_mib=81559)
    shape = {"platform": "gpu-h100-sxm", "preset": "1gpu-16vcpu-200gb"}
    gpus = (GPUS[0], h100)
    async with machine_cloud(tmp_path, accelerators=gpus, memory_mib=512 * 1024, cpus=64) as cloud:
        machine = await cloud.machine("one", resources=shape, boot_disk=boot_disk("one-boot"))
        assert cloud.machines.desired(machine.metadata.id)["gpus"] == [h100.pci_address]
        metadata = {"parent_id": cloud.project_id, "name": "two"}
        spec = instance_spec(resources=shape, boot_disk=boot_disk("two-boot"))
        refused = await cloud.refusal("InstanceService/Create", metadata=metadata, spec=spec)
        assert "0 GPUs of type h100. You asked for" in refused.message, "the L40S is no substitute"


async def test_a_stopped_machine_releases_its_gpu(cloud: Cloud) -> None:
    first = await cloud.machine("one", resources=SHAPE, boot_disk=boot_disk("one-boot"))
    await cloud.machine("two", resources=SHAPE, boot_disk=boot_disk("two-boot"))
    await cloud.call("InstanceService/Stop", id=first.metadata.id)
    await cloud.until(first.metadata.id, "STOPPED")
    third = await cloud.machine("three", resources=SHAPE, boot_disk=boot_disk("three-boot"))
    assert cloud.machines.desired(third.metadata.id)["gpus"] == ["0000:01:00.0"]


async def test_a_machine_for_which_no_gpu_is_left_is_refused(cloud: Cloud) -> None:
    for name in ("one", "two"):
        await cloud.machine(name, resources=SHAPE, boot_disk=boot_disk(f"{name}-boot"))
    spec = {"resources": SHAPE, "boot_disk": boot_disk("x")}

    refusal = await cloud.refusal(
        "InstanceService/Create",
        metadata={"parent_id": cloud.project_id, "name": "x"},
        spec=instance_spec(**spec),
    )
    assert "0 GPUs. You asked for" in refusal.message and "1 GPUs" in refusal.message
    (detail,) = refusal.details
    assert detail.retry_type == type(detail).RetryType.Value("NOTHING")


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (replace(GPUS[0], pci_address=""), "PCI address is not known"),
        (replace(GPUS[0], iommu_group=""), "no IOMMU.*switch on VT-d or AMD-Vi"),
        (BLOCKED, r"0000:02:00.0 \(driver nvme\), which this host uses"),
    ],
    ids=["address", "iommu", "group"],
)
async def test_a_machine_whose_gpu_cannot_be_passed_is_refused_and_not_charged(tmp_path, gpu, reason) -> None:
    async with machine_cloud(tmp_path, accelerators=(gpu,)) as cloud:
        failed, operation = await failed_machine(cloud)
        assert re.search(reason, operation.status.message)
        assert cloud.pod(failed) is None
        assert await gpu_seconds(cloud, failed) == 0


async def test_a_gpu_that_goes_before_the_machine_starts_is_waited_for_and_not_charged(cloud: Cloud) -> None:
    """It was offered when the request was accepted."""
    show(cloud)
    failed, operation = await failed_machine(cloud)
    assert "1 GPUs are needed and 0 are free" in operation.status.message
    assert await gpu_seconds(cloud, failed) == 0

    show(cloud, GPUS[1])
    cloud.running.worker.enqueue(failed)
    await cloud.until(failed, "RUNNING")
    assert cloud.machines.desired(failed)["gpus"] == ["0000:02:00.0"]


async def test_a_machine_that_loses_its_gpu_fails_and_is_charged_no_longer(cloud: Cloud) -> None:
    machine = (await cloud.machine(resources=SHAPE)).metadata.id
    (address,) = cloud.machines.desired(machine)["gpus"]
    show(cloud, *(gpu for gpu in GPUS if gpu.pci_address != address))

    cloud.running.worker.enqueue(machine)
    await cloud.until(machine, "ERROR")
    assert cloud.machines.desired(machine)["gpus"] == [address]  # none takes its place in a running guest
    charged = await gpu_seconds(cloud, machine)
    assert await gpu_seconds(cloud, machine, later=timedelta(hours=1)) == charged

    await cloud.call("InstanceService/Stop", id=machine)
    await cloud.until(machine, "STOPPED")
    await cloud.call("InstanceService/Start", id=machine)
    await cloud.until(machine, "RUNNING")
    assert cloud.machines.desired(machine)["gpus"] != [address]


async def test_a_machine_that_is_not_up_gets_another_gpu_for_a_lost_one(cloud: Cloud) -> None:
    """The host was restarted and one GPU did not survive."""
    machine = (await cloud.machine(resources=SHAPE)).metadata.id
    (address,) = cloud.machines.desired(machine)["gpus"]
    cloud.pod(machine).containers[0].state = ContainerState.CREATED
    show(cloud, *(gpu for gpu in GPUS if gpu.pci_address != address))
    cloud.running.worker.enqueue(machine)
    await cloud.when(machine, lambda _: cloud.machines.desired(machine)["gpus"] != [address], "RUNNING")
    assert devices(cloud, machine) >= {"/dev/vfio/11"}


async def test_a_machine_that_an_earlier_release_started_without_its_gpu_is_charged_no_longer(
    tmp_path,
) -> None:
    """Its pod has no device of a GPU, and the GPU is recorded by its number."""
    async with machine_cloud(tmp_path, accelerators=GPUS) as cloud:
        machine = (await cloud.machine(resources=SHAPE)).metadata.id

        def as_before(tx: Transaction) -> None:
            (held,) = tx.reservations(GPU_NAMESPACE)
            tx.release(GPU_NAMESPACE, held)
            assert tx.reserve(GPU_NAMESPACE, str([gpu.uuid for gpu in GPUS].index(held)), machine)
            content = json.loads(tx.secret(machine, "machine") or b"")
            spec = content["pod_spec"]
            spec["volumes"] = [each for each in spec["volumes"] if not each["name"].startswith("vfio")]
            tx.put_secret(machine, "machine", json.dumps(content).encode())

        await cloud.running.store.write(as_before)
        cloud.running.worker.enqueue(machine)
        await cloud.until(machine, "ERROR")
        assert set(await holders(cloud)) == {"GPU-0"}  # the row has the key of now

        await cloud.call("InstanceService/Stop", id=machine)
        await cloud.until(machine, "STOPPED")
        await cloud.call("InstanceService/Start", id=machine)
        await cloud.until(machine, "RUNNING")
        assert devices(cloud, machine) >= {"/dev/vfio/10"}


async def test_a_gpu_of_a_container_is_not_given_to_a_machine(cloud: Cloud) -> None:
    ledger = GpuLedger(cloud.running.store.write)
    await ledger.acquire(pod_holder(Reference("Pod", "lab", "worker-0")), 1, GPUS[:1], GPUS)
    machine = await cloud.machine(resources=SHAPE)
    assert cloud.machines.desired(machine.metadata.id)["gpus"] == ["0000:02:00.0"]


async def failed_machine(cloud: Cloud) -> tuple[str, Any]:
    """Return the id of a machine that failed, and the operation that made it."""
    metadata = {"parent_id": cloud.project_id, "name": "one"}
    made = await cloud.call("InstanceService/Create", metadata=metadata, spec=instance_spec(resources=SHAPE))
    await cloud.until(made.resource_id, "ERROR")
    return made.resource_id, await cloud.call("nebius.common.v1.OperationService/Get", id=made.id)


def show(cloud: Cloud, *gpus: Accelerator) -> None:
    """Let the engine find these GPUs from now on; what was offered at the start stays offered."""
    cloud.engine.show_accelerators(gpus)


async def holders(cloud: Cloud) -> dict[str, str]:
    return dict(await cloud.running.store.read(lambda tx: tx.reservations(GPU_NAMESPACE)))


async def gpu_seconds(cloud: Cloud, resource_id: str, later: timedelta = timedelta(0)) -> int:
    """Return the seconds that its GPU is charged for until now or later."""
    history = await cloud.running.store.read(lambda tx: tx.history(resource_id=resource_id))
    end = datetime.now(UTC) + later
    records = InstanceMeter()(history, history[0].at, end)
    return sum(each.seconds for each in records if each.sku.endswith(".gpu"))


async def test_a_machine_that_was_removed_by_force_keeps_its_gpu_while_it_runs(cloud: Cloud) -> None:
    machines = []
    for name in ("one", "two"):
        made = await cloud.machine(name, resources=SHAPE, boot_disk=boot_disk(f"{name}-boot"))
        machines.append(made.metadata.id)
    pod = Reference("Pod", machines[0], machines[0])

    def forget(tx: Transaction) -> None:
        keep_gpus = leave_to_pod(tx, machines[0], pod)
        tx.delete(machines[0])
        keep_gpus()

    await cloud.running.store.write(forget)
    third = await cloud.create("Instance", "x", instance_spec(resources=SHAPE, boot_disk=boot_disk("x")))
    await cloud.until(third, "ERROR")
    assert cloud.pod(third) is None and cloud.pod(machines[0]) is not None

    cloud.engine.lose(pod)  # the operator has removed it
    cloud.running.worker.enqueue(third)
    await cloud.until(third, "RUNNING")
    assert cloud.machines.desired(third)["gpus"] == ["0000:01:00.0"]


async def test_a_preempted_machine_gives_its_gpu_to_the_one_that_waits(cloud: Cloud) -> None:
    policy = {"preemptible": {"on_preemption": "STOP"}, "recovery_policy": "FAIL"}
    for name in ("one", "two"):
        spec = instance_spec(resources=SHAPE, boot_disk=boot_disk(f"{name}-boot"), **policy)
        spot = await cloud.create("Instance", name, spec)
        await cloud.until(spot, "RUNNING")
    given = cloud.machines.desired(spot)["gpus"]
    web = await cloud.create("Instance", "web", instance_spec(resources=SHAPE, boot_disk=boot_disk("web")))
    await cloud.until(web, "RUNNING")
    assert cloud.pod(spot) is None
    assert cloud.machines.desired(web)["gpus"] == given
