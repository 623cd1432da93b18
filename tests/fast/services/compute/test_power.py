"""Power changes of machines, by themselves and by others: CMP-01, CMP-11, CMP-15."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from neocloud.control_plane.composition import record_stop
from neocloud.core.clock import SystemClock
from neocloud.core.store import load_or_make_key, open_store
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeWorld
from neocloud.services.compute import SERVICE
from neocloud.services.compute.api.maintenance import finish_maintenance, plan_maintenance, preempt
from neocloud.services.compute.types import InstanceStateEnum
from neocloud.settings.settings import Settings
from neocloud.testing.waiting import until
from tests.fast.services.compute.cloud import Cloud, instance_spec, machine_cloud

NOW = SystemClock().now()
PREEMPTIBLE = {"preemptible": {"on_preemption": "STOP"}, "recovery_policy": "FAIL"}


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[Cloud]:
    async with machine_cloud(tmp_path) as running:
        yield running


def pod(instance_id: str) -> Reference:
    return Reference("Pod", instance_id, instance_id)


async def until_restarted(cloud: Cloud, instance_id: str) -> Any:
    """Wait until the machine runs again after its program ended, and return it as the API shows it."""
    return await until(
        lambda: cloud.call("neocloud.compute.v1.MachineService/Get", instance_id=instance_id),
        holds=lambda machine: machine.restarts and machine.power == "running",
    )


async def test_a_guest_that_powers_itself_off_stays_off_until_it_is_started(cloud: Cloud) -> None:
    identifier = (await cloud.machine()).metadata.id
    cloud.engine.kill(pod(identifier), exit_code=0)
    stopped = await cloud.until(identifier, "STOPPED")
    assert not stopped.spec.stopped, "nobody asked for it"
    assert cloud.pod(identifier) is None
    cloud.running.worker.enqueue(identifier)
    machine = await cloud.call("neocloud.compute.v1.MachineService/Get", instance_id=identifier)
    assert (machine.power, machine.reason) == ("off", "guest powered itself off")
    assert machine.ended == "exit code 0" and not machine.HasField("started_at")
    await cloud.call("InstanceService/Start", id=identifier)
    assert (await cloud.until(identifier, "RUNNING")).metadata.resource_version == 1


async def test_a_machine_that_fails_is_started_again(cloud: Cloud) -> None:
    identifier = (await cloud.machine()).metadata.id
    cloud.engine.kill(pod(identifier), exit_code=137)
    machine = await until_restarted(cloud, identifier)
    assert (machine.power, machine.restarts) == ("running", 1)
    assert machine.ended == "signal 9" and machine.HasField("started_at")
    await cloud.until(identifier, "RUNNING")


async def test_a_machine_that_must_not_recover_stays_off_when_it_fails(cloud: Cloud) -> None:
    identifier = (await cloud.machine(recovery_policy="FAIL")).metadata.id
    cloud.engine.kill(pod(identifier), exit_code=137)
    await cloud.until(identifier, "STOPPED")
    machine = await cloud.call("neocloud.compute.v1.MachineService/Get", instance_id=identifier)
    assert (machine.ended, "policy says FAIL" in machine.reason) == ("signal 9", True)
    await cloud.call("InstanceService/Start", id=identifier)
    await cloud.until(identifier, "RUNNING")
    machine = await cloud.call("neocloud.compute.v1.MachineService/Get", instance_id=identifier)
    assert (machine.ended, machine.reason) == ("", ""), "that is over"


async def test_a_machine_that_must_always_run_runs_again_when_the_guest_powers_off(cloud: Cloud) -> None:
    identifier = (await cloud.machine(recovery_policy="ALWAYS")).metadata.id
    cloud.engine.kill(pod(identifier), exit_code=0)
    machine = await until_restarted(cloud, identifier)
    assert (machine.power, machine.restarts) == ("running", 1)
    await cloud.until(identifier, "RUNNING")
    assert "STOPPED" not in await cloud.history(identifier)


async def test_a_lost_pod_is_made_again(cloud: Cloud) -> None:
    """A host that was reinstalled, or a hand that slipped."""
    identifier = (await cloud.machine()).metadata.id
    cloud.engine.lose(pod(identifier))
    cloud.running.worker.enqueue(identifier)
    await cloud.when(identifier, lambda _: cloud.pod(identifier) is not None)
    await cloud.until(identifier, "RUNNING")


async def test_a_preempted_machine_is_stopped_and_may_be_started_again(cloud: Cloud) -> None:
    identifier = (await cloud.machine(**PREEMPTIBLE)).metadata.id
    await preempt(cloud.running.store, identifier, NOW)
    cloud.running.worker.enqueue(identifier)
    await cloud.until(identifier, "STOPPED")
    await cloud.call("InstanceService/Start", id=identifier)
    await cloud.until(identifier, "RUNNING")


async def test_only_a_preemptible_machine_is_taken_away(cloud: Cloud) -> None:
    identifier = (await cloud.machine()).metadata.id
    with pytest.raises(Exception, match="not preemptible"):
        await preempt(cloud.running.store, identifier, NOW)


async def test_a_machine_whose_disk_is_full_says_so_and_stays_running(cloud: Cloud) -> None:
    identifier = (await cloud.machine()).metadata.id
    cloud.machines.states[identifier] = "io-error"
    cloud.machines.reasons[identifier] = "A disk of the host is full"
    cloud.running.worker.enqueue(identifier)
    machine = await cloud.call("neocloud.compute.v1.MachineService/Get", instance_id=identifier)
    assert (machine.power, machine.reason) == ("io-error", "A disk of the host is full")
    found = await cloud.get("Instance", identifier)
    assert InstanceStateEnum.Name(found.status.state) == "RUNNING"
    other = await cloud.machine("two", boot_disk=_boot("two-boot"))
    assert other.metadata.id != identifier


async def test_starting_what_runs_and_stopping_what_is_stopped_changes_nothing(cloud: Cloud) -> None:
    identifier = (await cloud.machine()).metadata.id
    assert (await cloud.call("InstanceService/Start", id=identifier)).HasField("status")
    await cloud.call("InstanceService/Stop", id=identifier)
    await cloud.until(identifier, "STOPPED")
    assert (await cloud.call("InstanceService/Stop", id=identifier)).HasField("status")


async def test_machines_come_back_with_the_cloud_but_not_those_that_were_off(tmp_path) -> None:
    world = FakeWorld()
    async with machine_cloud(tmp_path, world) as cloud:
        on = (await cloud.machine("on")).metadata.id
        off = (await cloud.machine("off", boot_disk=_boot("off-boot"))).metadata.id
        own = (await cloud.machine("own", boot_disk=_boot("own-boot"))).metadata.id
        await cloud.call("InstanceService/Stop", id=off)
        cloud.engine.kill(pod(own), exit_code=0)
        for identifier in (off, own):
            await cloud.until(identifier, "STOPPED")
        cloud.engine.kill(pod(on), exit_code=143)  # as the engine does when the cloud goes down
    settings = Settings(home=tmp_path)
    store = await open_store(settings.database, load_or_make_key(settings.key_file), SystemClock())
    assert await record_stop(store, SERVICE.kinds) == 1
    await store.close()
    async with machine_cloud(tmp_path, world) as cloud:
        await cloud.until(on, "RUNNING")
        assert cloud.pod(off) is None and cloud.pod(own) is None
        for identifier in (off, own):
            assert InstanceStateEnum.Name((await cloud.get("Instance", identifier)).status.state) == "STOPPED"


async def test_maintenance_is_shown_until_it_is_done(cloud: Cloud) -> None:
    identifier = (await cloud.machine()).metadata.id
    store = cloud.running.store
    event_id = await plan_maintenance(store, identifier, now=NOW, deadline=NOW, reason="a fan is loud")
    event = await cloud.call("MaintenanceService/GetByInstance", instance_id=identifier)
    assert (event.id, event.status.maintenance_reason) == (event_id, "a fan is loud")
    assert (await cloud.get("Instance", identifier)).status.maintenance_event_id == event_id
    listed = await cloud.call("MaintenanceService/ListActive", parent_id=cloud.project_id)
    assert [item.id for item in listed.items] == [event_id]
    await finish_maintenance(store, event_id, NOW)
    assert not (await cloud.call("MaintenanceService/ListActive", parent_id=cloud.project_id)).items


async def test_starting_lasts_long_enough_to_be_seen(tmp_path) -> None:
    """A client that looks every few seconds must see it, at creation and at each start."""
    async with machine_cloud(tmp_path, starting_seconds=0.6) as cloud:
        clock = SystemClock()
        begin = clock.monotonic()
        identifier = (await cloud.machine()).metadata.id
        assert clock.monotonic() - begin >= 0.6
        await cloud.call("InstanceService/Stop", id=identifier)
        await cloud.until(identifier, "STOPPED")
        begin = clock.monotonic()
        await cloud.call("InstanceService/Start", id=identifier)
        await cloud.until(identifier, "RUNNING")
        assert clock.monotonic() - begin >= 0.6


def _boot(name: str) -> dict:
    disk = instance_spec()["boot_disk"]
    return {**disk, "managed_disk": {**disk["managed_disk"], "name": name}}
