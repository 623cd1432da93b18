"""Maintenance that an operator announces: what owners see, what stops and starts, and who may: VPC-04."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.core.store import Page
from neocloud.engines.fake import FakeWorld
from neocloud.services import iam
from neocloud.services.compute import InstanceMeter
from neocloud.services.compute.types import InstanceStateEnum
from neocloud.services.iam.rules.roles import ROLES, allows
from neocloud.services.operator.rules import CREATE
from neocloud.testing.waiting import until
from tests.control_plane import sign_in
from tests.fast.services.compute.cloud import Cloud, boot_disk, instance_spec, machine_cloud
from tests.fast.services.iam import keys
from tests.fast.services.slurm.cloud import fake_cloud

SERVICE = "neocloud.operator.v1.MaintenanceService"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
REASON = "New firmware"
CAPACITY: dict[str, Any] = {"memory_mib": 8 * 1024, "cpus": 8}
GIB_8 = {"platform": "cpu-local", "preset": "1vcpu-8gb"}


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with machine_cloud(tmp_path, **CAPACITY) as running:
        yield running


def request(cloud: Any, start: datetime | None = None, parent_id: str = "", **spec: Any) -> dict[str, Any]:
    metadata = {"parent_id": parent_id or cloud.tenant_id, "name": "firmware"}
    start_at = start or datetime.now(UTC)
    return {"metadata": metadata, "spec": {"start_at": start_at.isoformat(), "reason": REASON, **spec}}


async def announced(cloud: Any, start: datetime | None = None, **spec: Any) -> str:
    """Announce maintenance, by default for now, and return its id."""
    return (await cloud.call(f"{SERVICE}/Create", request(cloud, start, **spec))).resource_id


async def machine(cloud: Cloud, name: str, **changes: Any) -> str:
    changes.setdefault("recovery_policy", "RECOVER")
    identifier = await cloud.create(
        "Instance", name, instance_spec(boot_disk=boot_disk(f"{name}-boot"), **changes)
    )
    await cloud.until(identifier, "RUNNING")
    return identifier


async def ended(cloud: Cloud, maintenance: str) -> None:
    await cloud.call(f"{SERVICE}/Delete", id=maintenance)
    await cloud.gone(maintenance)


async def state(cloud: Cloud, identifier: str) -> str:
    return InstanceStateEnum.Name((await cloud.get("Instance", identifier)).status.state)


async def event(cloud: Cloud, identifier: str) -> Any:
    return await cloud.call("MaintenanceService/GetByInstance", instance_id=identifier)


async def has_event(cloud: Cloud, identifier: str) -> bool:
    return bool((await cloud.get("Instance", identifier)).status.maintenance_event_id)


async def test_owners_see_what_is_announced_and_machines_run_on(cloud: Cloud) -> None:
    web = await machine(cloud, "web")
    start = datetime.now(UTC) + HOUR
    maintenance = await announced(cloud, start)
    await cloud.until(maintenance, "ANNOUNCED")
    await until(lambda: has_event(cloud, web), holds=bool)
    shown = await event(cloud, web)
    assert (await cloud.get("Instance", web)).status.maintenance_event_id == shown.id
    assert shown.spec.is_planned and shown.status.maintenance_reason == REASON
    assert shown.status.sla_deadline_ts.ToDatetime(UTC) == start
    active = await cloud.call("MaintenanceService/ListActive", parent_id=cloud.project_id)
    assert [each.id for each in active.items] == [shown.id]
    assert await state(cloud, web) == "RUNNING"

    await ended(cloud, maintenance)
    assert not await has_event(cloud, web)
    assert await state(cloud, web) == "RUNNING"


async def test_machines_stop_at_its_time_and_those_that_recover_start_after_it(cloud: Cloud) -> None:
    recovers = await machine(cloud, "recovers")
    fails = await machine(cloud, "fails", recovery_policy="FAIL")
    stopped = await machine(cloud, "stopped")
    await cloud.call("InstanceService/Stop", id=stopped)
    await cloud.until(stopped, "STOPPED")
    maintenance = await announced(cloud)
    await cloud.until(maintenance, "UNDER_WAY")
    for each in (recovers, fails):
        seen = await cloud.until(each, "STOPPED")
        assert not seen.spec.stopped and cloud.pod(each) is None
        answer = await cloud.call("neocloud.compute.v1.MachineService/Get", instance_id=each)
        assert "maintenance" in answer.reason
    for each in (recovers, fails, stopped):
        await until(lambda each=each: has_event(cloud, each), holds=bool)
        refused = await cloud.refusal("InstanceService/Start", id=each)
        assert refused.code is Code.FAILED_PRECONDITION and REASON in refused.message
    history = await cloud.running.store.read(lambda tx: tx.history(resource_id=recovers))
    now = datetime.now(UTC)
    assert all(each.end < now for each in InstanceMeter()(history, now - DAY, now + DAY))

    await ended(cloud, maintenance)
    await cloud.until(recovers, "RUNNING")
    assert (await state(cloud, fails), await state(cloud, stopped)) == ("STOPPED", "STOPPED")
    await cloud.call("InstanceService/Start", id=fails)
    await cloud.until(fails, "RUNNING")
    assert not await has_event(cloud, recovers)


async def seconds_used(cloud: Cloud, of: str) -> int:
    """Return the seconds of usage of machines or of disks, by what their SKUs begin with."""
    found = await cloud.call("neocloud.billing.v1.UsageService/ListUsage", parent_id=cloud.project_id)
    return sum(each.seconds for each in found.items if each.sku.startswith(of))


async def test_a_machine_is_not_charged_while_maintenance_keeps_it_stopped(cloud: Cloud) -> None:
    """So nothing has to be credited. Its disks are charged as those of any stopped machine."""
    web = await machine(cloud, "web")
    await until(lambda: seconds_used(cloud, "cpu-local"), seconds=20)
    maintenance = await announced(cloud)
    await cloud.until(web, "STOPPED")
    charged, disks = await seconds_used(cloud, "cpu-local"), await seconds_used(cloud, "disk")
    await until(lambda: seconds_used(cloud, "disk"), holds=lambda seconds: seconds >= disks + 2, seconds=20)
    assert await seconds_used(cloud, "cpu-local") == charged > 0
    await ended(cloud, maintenance)
    await cloud.until(web, "RUNNING")
    await until(lambda: seconds_used(cloud, "cpu-local"), holds=lambda seconds: seconds > charged, seconds=20)


async def test_nothing_is_created_on_a_host_under_maintenance(cloud: Cloud) -> None:
    maintenance = await announced(cloud)
    await cloud.until(maintenance, "UNDER_WAY")
    metadata = {"parent_id": cloud.project_id, "name": "web"}
    refused = await cloud.refusal("InstanceService/Create", metadata=metadata, spec=instance_spec())
    assert refused.code is Code.RESOURCE_EXHAUSTED and REASON in refused.message
    await ended(cloud, maintenance)
    await machine(cloud, "web")


async def test_of_one_machine_it_leaves_the_others_and_keeps_its_capacity(cloud: Cloud) -> None:
    web = await machine(cloud, "web", resources={"platform": "cpu-local", "preset": "1vcpu-4gb"})
    other = await machine(cloud, "other")
    maintenance = await announced(cloud, instance_id=web)
    await cloud.until(web, "STOPPED")
    assert await state(cloud, other) == "RUNNING" and not await has_event(cloud, other)
    metadata = {"parent_id": cloud.project_id, "name": "large"}
    refused = await cloud.refusal(
        "InstanceService/Create", metadata=metadata, spec=instance_spec(resources=GIB_8)
    )
    assert "web" in refused.message, "its capacity is kept for it"
    await ended(cloud, maintenance)
    await cloud.until(web, "RUNNING")


async def test_a_machine_that_its_owner_stops_meanwhile_stays_stopped(cloud: Cloud) -> None:
    web = await machine(cloud, "web")
    maintenance = await announced(cloud)
    await cloud.until(web, "STOPPED")
    await cloud.call("InstanceService/Stop", id=web)
    await cloud.until(web, "STOPPED")
    await ended(cloud, maintenance)
    assert (await cloud.until(web, "STOPPED")).spec.stopped


async def test_a_machine_can_be_deleted_meanwhile(cloud: Cloud) -> None:
    web = await machine(cloud, "web")
    maintenance = await announced(cloud)
    await cloud.until(web, "STOPPED")
    await cloud.call("InstanceService/Delete", id=web)
    await cloud.gone(web)
    await ended(cloud, maintenance)


async def test_a_server_that_ends_meanwhile_continues(tmp_path: Path) -> None:
    """The operator restarts the host."""
    world = FakeWorld()
    async with machine_cloud(tmp_path, world, **CAPACITY) as cloud:
        web = await machine(cloud, "web")
        maintenance = await announced(cloud)
        await cloud.until(web, "STOPPED")
    async with machine_cloud(tmp_path, world, **CAPACITY) as cloud:
        await cloud.until(maintenance, "UNDER_WAY")
        assert await state(cloud, web) == "STOPPED" and cloud.pod(web) is None
        assert await cloud.refusal("InstanceService/Start", id=web)
        await ended(cloud, maintenance)
        await cloud.until(web, "RUNNING")


async def test_owners_find_it_in_their_audit_log(cloud: Cloud) -> None:
    web = await machine(cloud, "web")
    maintenance = await announced(cloud)
    await cloud.until(web, "STOPPED")
    await ended(cloud, maintenance)
    await cloud.until(web, "RUNNING")
    events = await cloud.running.store.read(lambda tx: tx.list_audit(resource_id=web, page=Page(20))[0])
    found = {each.action: each for each in events}
    assert REASON in found["stopForMaintenance"].message and REASON in found["startAfterMaintenance"].message
    assert not found["stopForMaintenance"].subject
    own = await cloud.running.store.read(lambda tx: tx.list_audit(resource_id=maintenance, page=Page(20))[0])
    assert {"create", "delete"} <= {each.action for each in own} and all(each.subject for each in own)


async def test_only_operators_may_announce_it(cloud: Cloud) -> None:
    assert {role for role in ROLES if allows(role, CREATE)} == {"admin"}
    other = await iam.bootstrap(
        cloud.running.store, SystemClock(), tenant_name="other-bank", make_key=keys.other_rsa_key
    )
    outsider = replace(cloud, token=await sign_in(cloud.channel, other.credentials))
    for parent_id in (other.tenant_id, other.project_id):
        refused = await outsider.refusal(f"{SERVICE}/Create", request(cloud, parent_id=parent_id))
        assert refused.code is Code.PERMISSION_DENIED
    refused = await outsider.refusal(f"{SERVICE}/Create", request(cloud))
    assert refused.code is Code.NOT_FOUND, "it may not know of the operator's tenant"
    refused = await cloud.refusal(f"{SERVICE}/Create", request(cloud, parent_id=cloud.project_id))
    assert "operator" in refused.message
    maintenance = await announced(cloud, datetime.now(UTC) + HOUR)
    for verb in ("Get", "Delete"):
        assert (await outsider.refusal(f"{SERVICE}/{verb}", id=maintenance)).code is Code.NOT_FOUND


async def test_a_request_that_cannot_be_meant_is_refused(cloud: Cloud) -> None:
    past = datetime.now(UTC) - HOUR
    assert "start_at" in (await cloud.refusal(f"{SERVICE}/Create", request(cloud, past))).message
    wrong = request(cloud, instance_id="computeinstance-e00none")
    assert "instance_id" in (await cloud.refusal(f"{SERVICE}/Create", wrong)).message
    wrong = request(cloud, drain_before="172800s")
    assert "drain_before" in (await cloud.refusal(f"{SERVICE}/Create", wrong)).message
    await announced(cloud, datetime.now(UTC) + HOUR)
    again = request(cloud)
    again["metadata"]["name"] = "second"
    assert "firmware" in (await cloud.refusal(f"{SERVICE}/Create", again)).message


async def test_slurm_workers_are_drained_before_and_resumed_after(tmp_path: Path) -> None:
    async with fake_cloud(tmp_path) as cloud:
        cluster = await cloud.create_cluster(count=2)
        (records,) = cloud.slurm.records.values()
        records["worker-1"] = replace(
            records["worker-1"], states=frozenset({"IDLE", "DRAIN"}), reason="bad fan"
        )
        maintenance = await announced(cloud, datetime.now(UTC) + HOUR, drain_before="7200s")
        await cloud.until(maintenance, "DRAINING")

        async def drained() -> bool:
            cloud.running.worker.notify()
            return "DRAIN" in records["worker-0"].states

        await until(drained, holds=bool)
        assert "maintenance of the host at" in records["worker-0"].reason
        assert records["worker-1"].reason == "bad fan"
        await cloud.call(f"{SERVICE}/Delete", id=maintenance)
        await cloud.gone(maintenance)

        async def resumed() -> bool:
            return "DRAIN" not in records["worker-0"].states

        await until(resumed, holds=bool)
        assert records["worker-1"].reason == "bad fan", "an administrator drained that one"
        await cloud.until(cluster.metadata.id, "READY")
