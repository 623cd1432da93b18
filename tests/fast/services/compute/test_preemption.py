"""A request that is not preemptible stops preemptible machines where nothing else makes it fit: CMP-15."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import grpc
import pytest

from neocloud.core.store import Page, Resource
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeWorld
from neocloud.services.compute import InstanceMeter
from neocloud.services.compute.preemption import smallest_set
from neocloud.services.compute.types import InstanceStateEnum
from tests.fast.services.compute.cloud import Cloud, boot_disk, instance_spec, machine_cloud

PREEMPTIBLE = {"preemptible": {"on_preemption": "STOP"}, "recovery_policy": "FAIL"}
GIB_2, GIB_4, GIB_8 = ({"platform": "cpu-local", "preset": f"1vcpu-{size}gb"} for size in (2, 4, 8))
EIGHT_GIB: dict[str, Any] = {"memory_mib": 8 * 1024, "cpus": 8}
WAITS = re.compile(r"waits for two to stop \(preemptible\), until \d\d:\d\d:\d\d UTC")


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[Cloud]:
    async with machine_cloud(tmp_path, **EIGHT_GIB) as running:
        yield running
        gate = running.engine.faults.stop_gate
        if gate is not None:
            gate.set()


def ignore_power_buttons(cloud: Cloud) -> asyncio.Event:
    """Let no machine stop until the event is set, as when its grace time is over."""
    cloud.engine.faults.stop_gate = asyncio.Event()
    return cloud.engine.faults.stop_gate


def spec(name: str, resources: Any = GIB_4, **changes: Any) -> dict[str, Any]:
    return instance_spec(resources=resources, boot_disk=boot_disk(f"{name}-boot"), **changes)


async def preemptible(cloud: Cloud, name: str, resources: Any = GIB_4) -> str:
    identifier = await cloud.create("Instance", name, spec(name, resources, **PREEMPTIBLE))
    await cloud.until(identifier, "RUNNING")
    return identifier


async def requested(cloud: Cloud, name: str, resources: Any = GIB_4) -> str:
    return await cloud.create("Instance", name, spec(name, resources))


async def refused(cloud: Cloud, name: str, resources: Any = GIB_4, **changes: Any) -> str:
    metadata = {"parent_id": cloud.project_id, "name": name}
    content = spec(name, resources, **changes)
    return (await cloud.refusal("InstanceService/Create", metadata=metadata, spec=content)).message


async def state(cloud: Cloud, identifier: str) -> str:
    return InstanceStateEnum.Name((await cloud.get("Instance", identifier)).status.state)


async def event(cloud: Cloud, identifier: str) -> Any:
    return await cloud.call("MaintenanceService/GetByInstance", instance_id=identifier)


async def progress(cloud: Cloud, identifier: str) -> str:
    def read(tx: Any) -> str:
        return tx.list_operations(resource_id=identifier)[0][0].progress

    return await cloud.running.store.read(read)


async def waiting(cloud: Cloud, identifier: str) -> str:
    """Return why the machine waits, once it says so."""
    async with asyncio.timeout(20):
        while "waits for" not in (found := await progress(cloud, identifier)):
            await asyncio.sleep(0.02)
    return found


async def claims(cloud: Cloud, *identifiers: str) -> Sequence[str]:
    def read(tx: Any) -> list[str]:
        return [space for each in identifiers for space, _ in tx.held_by(each) if "preemption" in space]

    return await cloud.running.store.read(read)


async def test_a_machine_on_demand_preempts_the_newest_preemptible_one(cloud: Cloud) -> None:
    one, two = await preemptible(cloud, "one"), await preemptible(cloud, "two")
    gate = ignore_power_buttons(cloud)
    before = datetime.now(UTC)
    web = await requested(cloud, "web")

    victim = await cloud.until(two, "STOPPING")
    announced = await event(cloud, two)
    assert (await cloud.get("Instance", two)).status.maintenance_event_id == announced.id
    assert "Preempted" in announced.status.maintenance_reason and not announced.spec.is_planned
    deadline = announced.status.sla_deadline_ts.ToDatetime(UTC)
    assert timedelta(seconds=59) < deadline - before < timedelta(seconds=80)
    assert WAITS.search(await waiting(cloud, web))
    assert (await state(cloud, web), await state(cloud, one)) == ("STARTING", "RUNNING")
    assert cloud.pod(web) is None, "it must not run beside the machine that still has the memory"

    gate.set()
    await cloud.until(web, "RUNNING")
    assert await state(cloud, two) == "STOPPED"
    assert not victim.spec.stopped, "its owner did not stop it"
    assert cloud.pod(one) is not None and cloud.pod(two) is None
    assert not await claims(cloud, web, one, two)
    machine = await cloud.call("neocloud.compute.v1.MachineService/Get", instance_id=two)
    assert re.search(r"preempted at .* UTC; it stays off until it is started", machine.reason)


async def test_the_owner_finds_it_in_the_audit_log_without_who_needed_it(cloud: Cloud) -> None:
    two = await preemptible(cloud, "two", GIB_8)
    web = await requested(cloud, "web")
    await cloud.until(web, "RUNNING")
    events = await cloud.running.store.read(lambda tx: tx.list_audit(resource_id=two, page=Page(10))[0])
    found = next(each for each in events if each.action == "preempt")
    assert (found.tenant_id, found.resource_name, found.status) == (cloud.tenant_id, "two", "DONE")
    assert not (found.subject or found.request_id or found.source_address)
    assert "web" not in found.message and web not in found.hierarchy


async def test_a_preempted_machine_is_not_charged_from_the_notice_on(cloud: Cloud) -> None:
    two = await preemptible(cloud, "two", GIB_8)
    gate = ignore_power_buttons(cloud)
    await requested(cloud, "web")
    await cloud.until(two, "STOPPING")
    history = await cloud.running.store.read(lambda tx: tx.history(resource_id=two))
    noticed = history[-1].at
    assert history[-1].state == "STOPPING"
    charged = InstanceMeter()(history, noticed - timedelta(days=1), noticed + timedelta(days=1))
    assert all(record.end <= noticed for record in charged)
    gate.set()


async def test_two_requests_preempt_two_machines_and_the_third_is_refused(cloud: Cloud) -> None:
    victims = {await preemptible(cloud, "one"), await preemptible(cloud, "two")}
    gate = ignore_power_buttons(cloud)

    async def ask(name: str) -> str | None:
        try:
            return await requested(cloud, name)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return None

    answers = await asyncio.gather(*map(ask, ("a", "b", "c")))
    admitted = [each for each in answers if each]
    assert len(admitted) == 2
    for victim in victims:
        await cloud.until(victim, "STOPPING")
    gate.set()
    for each in admitted:
        await cloud.until(each, "RUNNING")
    events = [await event(cloud, victim) for victim in victims]
    assert len({each.id for each in events}) == 2, "each was preempted once"
    assert len(cloud.engine.world.pods) == 2


async def test_a_request_that_goes_while_it_waits_leaves_nothing_reserved(cloud: Cloud) -> None:
    two = await preemptible(cloud, "two", GIB_8)
    gate = ignore_power_buttons(cloud)
    web = await requested(cloud, "web", GIB_8)
    await waiting(cloud, web)
    await cloud.call("InstanceService/Delete", id=web)
    await cloud.gone(web)
    gate.set()
    await cloud.until(two, "STOPPED")
    assert cloud.pod(two) is None, "it is not started again by itself"
    assert not await claims(cloud, web, two)
    await cloud.call("InstanceService/Start", id=two)
    await cloud.until(two, "RUNNING")
    assert not (await cloud.get("Instance", two)).status.maintenance_event_id
    assert await cloud.refusal("MaintenanceService/GetByInstance", instance_id=two)


async def test_a_stopped_request_waits_for_nothing(cloud: Cloud) -> None:
    two = await preemptible(cloud, "two", GIB_8)
    gate = ignore_power_buttons(cloud)
    web = await requested(cloud, "web", GIB_8)
    await waiting(cloud, web)
    await cloud.call("InstanceService/Stop", id=web)
    await cloud.until(web, "STOPPED")
    assert not await claims(cloud, web, two)
    gate.set()
    await cloud.until(two, "STOPPED")


async def test_a_preemptible_request_preempts_nothing_but_waits_for_what_stops(cloud: Cloud) -> None:
    two = await preemptible(cloud, "two", GIB_8)
    assert "You asked for 1 vCPU, 4 GiB." in await refused(cloud, "spot", **PREEMPTIBLE)
    assert await state(cloud, two) == "RUNNING"
    gate = ignore_power_buttons(cloud)
    web = await requested(cloud, "web")
    spot = await cloud.create("Instance", "spot", spec("spot", **PREEMPTIBLE))
    assert WAITS.search(await waiting(cloud, spot))
    assert "GiB" in await refused(cloud, "late", GIB_2, **PREEMPTIBLE), "both have taken all that is freed"
    gate.set()
    await cloud.until(web, "RUNNING")
    await cloud.until(spot, "RUNNING")


async def test_a_request_that_is_refused_for_another_reason_preempts_nothing(cloud: Cloud) -> None:
    two = await preemptible(cloud, "two", GIB_8)
    assert "two" in await refused(cloud, "two", GIB_8)
    assert "GiB" in await refused(cloud, "web", {"platform": "cpu-local", "preset": "4vcpu-16gb"})
    assert await state(cloud, two) == "RUNNING"
    assert not (await cloud.get("Instance", two)).status.maintenance_event_id


async def test_a_stopped_machine_preempts_when_it_is_started(cloud: Cloud) -> None:
    web = (await cloud.machine("web", resources=GIB_4)).metadata.id
    await cloud.call("InstanceService/Stop", id=web)
    await cloud.until(web, "STOPPED")
    two = await preemptible(cloud, "two", GIB_8)
    await cloud.call("InstanceService/Start", id=web)
    await cloud.until(web, "RUNNING")
    assert await state(cloud, two) == "STOPPED"
    assert "GiB" in (await cloud.refusal("InstanceService/Start", id=two)).message


async def test_a_machine_that_is_being_preempted_cannot_be_kept_by_its_owner(cloud: Cloud) -> None:
    two = await preemptible(cloud, "two", GIB_8)
    gate = ignore_power_buttons(cloud)
    web = await requested(cloud, "web", GIB_8)
    await waiting(cloud, web)
    assert "GiB" in (await cloud.refusal("InstanceService/Start", id=two)).message
    await cloud.call("InstanceService/Stop", id=two)
    assert cloud.pod(web) is None
    gate.set()
    await cloud.until(web, "RUNNING")
    assert (await cloud.until(two, "STOPPED")).spec.stopped


async def test_a_tenant_learns_nothing_about_machines_of_others(cloud: Cloud) -> None:
    two = await preemptible(cloud, "two", GIB_8)
    gate = ignore_power_buttons(cloud)

    def move(tx: Any) -> None:
        row: Resource = tx.get(two)
        tx.update(replace(row, parent_id="project-e00others"))

    await cloud.running.store.write(move)
    web = await requested(cloud, "web")
    shown = await waiting(cloud, web)
    assert re.search(r"waits for capacity that is being freed, until \d\d:\d\d:\d\d UTC", shown)
    assert two not in shown and "two" not in shown
    gate.set()
    await cloud.until(web, "RUNNING")


async def test_a_server_that_ends_in_between_continues(tmp_path) -> None:
    world = FakeWorld()
    async with machine_cloud(tmp_path, world, **EIGHT_GIB) as cloud:
        two = await preemptible(cloud, "two", GIB_8)
        ignore_power_buttons(cloud)
        web = await requested(cloud, "web", GIB_8)
        await waiting(cloud, web)
        deadline = (await event(cloud, two)).status.sla_deadline_ts
    async with machine_cloud(tmp_path, world, **EIGHT_GIB) as cloud:
        await cloud.until(web, "RUNNING")
        assert await state(cloud, two) == "STOPPED"
        assert (await event(cloud, two)).status.sla_deadline_ts == deadline
        assert set(world.pods) == {Reference("Pod", web, web)}
        assert not await claims(cloud, web, two)


def amounts(**parts: int) -> dict[str, Fraction]:
    return {what: Fraction(number) for what, number in parts.items()}


NEWEST_FIRST = [
    ("d", amounts(memory=2)),
    ("c", amounts(cores=1)),
    ("b", amounts(memory=4)),
    ("a", amounts(memory=4, cores=1)),
]


@pytest.mark.parametrize(
    ("needed", "expected"),
    [
        (amounts(memory=1), ["d"]),
        (amounts(memory=3), ["b"]),
        (amounts(memory=3, cores=1), ["a"]),
        (amounts(memory=6), ["d", "b"]),
        (amounts(memory=7, cores=2), ["c", "b", "a"]),
        (amounts(memory=10), ["d", "b", "a"]),
        (amounts(memory=11), None),
    ],
)
def test_as_few_as_possible_are_preempted_and_the_newest_of_them(needed: Any, expected: Any) -> None:
    assert smallest_set(needed, NEWEST_FIRST) == expected


def test_of_many_machines_only_those_are_preempted_that_are_needed() -> None:
    many = [(str(number), amounts(memory=1 + number % 2)) for number in range(300)]
    chosen = smallest_set(amounts(memory=100), many)
    assert chosen is not None
    sizes = dict(many)
    assert sum(sizes[each]["memory"] for each in chosen) in (100, 101)
