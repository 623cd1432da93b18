"""Hosts as nodes: watched, drained by policy, people and windows, and never repaired by the cloud."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.core.readers import ServiceRegistry
from neocloud.emulator.fakes import FakeSlurm
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Phase, Status
from neocloud.fleet.nodes.node_state import NodeState
from neocloud.fleet.nodes.parts import HostPart
from neocloud.services import iam
from neocloud.services.fleet import ensure_host_pool
from neocloud.services.fleet.logs.node_logs import PoolLog
from neocloud.services.fleet.public import Host, HostNodes
from neocloud.services.fleet.reconcile.hosts import new_host_events, verification_ended
from neocloud.services.fleet.reconcile.maintenance import host_drain_events, names_on
from neocloud.services.fleet.render import drained_host, host_advice
from neocloud.services.fleet.types import HOST_POOL_ID_PREFIX
from neocloud.services.slurm.access import SlurmFactory
from neocloud.services.slurm.public import Worker
from tests import control_plane
from tests.control_plane import sign_in
from tests.fast.services.fleet.hosts import GOOD, FakeHosts, written_as_drained
from tests.fast.services.fleet.test_fleet import WatchedCloud, eventually, of_type
from tests.fast.services.fleet.test_maintenance import WINDOWS, text
from tests.fast.services.iam import keys

NODES = "neocloud.fleet.v1.NodeService"
HOST = "gpu-1"
FAULT = ("gpu_lost", Status.FAIL, "GPU 0 is gone; last used by secret-of-another-tenant")


class HostedCloud(WatchedCloud):
    hosts: FakeHosts

    async def host(self, name: str = HOST) -> Any:
        return await self.call(f"{NODES}/Get", id=name)

    async def host_when(self, holds: Any, name: str = HOST) -> Any:
        async def found() -> Any:
            node = await self.host(name)
            return node if holds(node) else None

        try:
            return await eventually(found)
        except AssertionError as error:
            raise AssertionError(f"{await self.host(name)}: {await self.host_events(name)}") from error

    async def host_events(self, name: str = HOST) -> list[dict[str, Any]]:
        found = await self.call(f"{NODES}/ListEvents", id=name, page_size=500)
        return [json.loads(each.json) for each in found.items]

    async def watched_host(self) -> None:
        await ensure_host_pool(self.running.store, SystemClock())
        await ensure_host_pool(self.running.store, SystemClock())  # as at the next start

        async def is_in_service() -> bool:
            nodes = (await self.call(f"{NODES}/List")).items
            return any(each.name == HOST and each.phase == "in_service" for each in nodes)

        await eventually(is_in_service)

    async def drained_is_written(self, *names: str) -> None:
        """Return when services that place something read that these hosts are drained, and no others."""
        await eventually(lambda: written_as_drained(self.running.store, *names))

    async def credited(self, *names: str) -> list[Any]:
        """Return the causes of credits because of maintenance, once these workers have one, and no others."""

        async def found() -> list[Any]:
            credits = await self.call("neocloud.billing.v1.CreditService/List", parent_id=self.project_id)
            causes = [each.cause for each in credits.items if each.cause.cause == "maintenance"]
            return causes if {each.part for each in causes} == {*names} else []

        return await eventually(found)

    async def new_cluster_refusal(self) -> Any:
        workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 1}
        metadata = {"parent_id": self.project_id, "name": "another"}
        method = "neocloud.slurm.v1.ClusterService/Create"
        return await self.refusal(method, metadata=metadata, spec={"node_sets": [workers]})


@pytest.fixture
async def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HostedCloud]:
    for name in ("ASK_EVERY", "ASK_QUIET"):
        monkeypatch.setattr(f"neocloud.services.fleet.node_agents.{name}", 0.2)
    monkeypatch.setattr("neocloud.services.fleet.node_agents.ASK_AGAIN", 0.2)
    monkeypatch.setattr("neocloud.services.fleet.reconcile.hosts.RESYNC_SECONDS", 0.2)
    monkeypatch.setattr("neocloud.services.fleet.reconcile.hosts.UNSETTLED_SECONDS", 0.1)
    monkeypatch.setattr("neocloud.services.fleet.reconcile.hosts.RETRY_SECONDS", 0.2)
    monkeypatch.setattr("neocloud.services.fleet.reconcile.hosts.ROUND_SECONDS", 0.0)
    hosts = FakeHosts(tmp_path / "agents")
    world = FakeWorld()
    slurm = FakeSlurm(world)
    async with control_plane.cloud_in_process(
        tmp_path / "home",
        FakeEngine(world, responder=slurm.respond),
        overrides=ServiceRegistry().add(SlurmFactory, slurm.connect).add(HostNodes, hosts),
        images={"slurm": {"name": "slurm"}},
    ) as running:
        found = HostedCloud(**vars(running), slurm=slurm)
        found.hosts = hosts
        yield found


async def test_a_host_is_a_node_that_starts_nothing_new_while_an_operator_has_drained_it(
    cloud: HostedCloud,
) -> None:
    await cloud.watched_host()
    await cloud.watched(2, 0)
    node = await cloud.host()
    assert type(node).Kind.Name(node.kind) == "HOST" and node.id == HOST and not node.advice
    assert node.certificate.boot == "boot-1"
    pods = len(cloud.world.pods)
    await cloud.call(f"{NODES}/Drain", id=HOST, reason="new firmware")
    node = await cloud.host_when(lambda node: node.phase == "drained" and node.advice)
    assert [hold.owner.partition(":")[0] for hold in node.holds] == ["operator"]

    async def is_refused() -> Any:
        nodes = await cloud.nodes()
        return all(node.phase == "drained" for node in nodes.values())

    await eventually(is_refused)
    refused = await cloud.new_cluster_refusal()
    assert refused.code is Code.RESOURCE_EXHAUSTED
    assert "The host is drained by the operators of this cloud (new firmware)" in refused.message
    assert "Running workloads continue. Try again when" in refused.message and HOST not in refused.message
    for name, worker in (await cloud.nodes()).items():
        assert [hold.owner for hold in worker.holds] == [f"host:{HOST}"]
        assert "the host is drained: new firmware" in cloud.reason(name) and HOST not in cloud.reason(name)
    assert len(cloud.world.pods) == pods, "nothing was ended, and nothing new started"
    causes = await cloud.credited("worker-0", "worker-1")
    assert {each.evidence for each in causes} == {"host"} and all(HOST not in each.reason for each in causes)
    await cloud.call(f"{NODES}/Release", id=HOST)
    await cloud.host_when(lambda node: node.phase == "in_service" and not node.advice)
    nodes = await cloud.settled(in_service=2)
    assert all(not node.holds for node in nodes.values())
    await cloud.create_cluster(count=1, name="another")
    assert not of_type(await cloud.host_events(), "StepStarted")


async def test_a_fault_drains_a_host_and_its_repair_is_for_an_operator(cloud: HostedCloud) -> None:
    await cloud.watched_host()
    cloud.hosts.said = (*GOOD, FAULT)
    node = await cloud.host_when(lambda node: node.phase == "triage")
    assert [hold.owner for hold in node.holds] == ["neocloud"]
    assert "for an operator: reboot (gpu_lost: GPU 0 is gone" in node.advice
    assert f"then `neo fleet release {HOST}`" in node.advice
    refused = await cloud.new_cluster_refusal()
    assert "(a fault: gpu_lost)" in refused.message and "secret" not in refused.message
    before = node.phase_since
    await cloud.call(f"{NODES}/Release", id=HOST)  # too early: it has not been repaired
    await cloud.host_when(lambda node: node.phase == "triage" and node.phase_since != before)
    cloud.hosts.said = (*GOOD, ("gpu_lost", Status.PASS, "0"))
    await cloud.host_when(lambda node: not node.faults)
    await cloud.call(f"{NODES}/Release", id=HOST)
    await cloud.host_when(lambda node: node.phase == "in_service" and not node.holds)
    found = await cloud.host_events()
    assert not of_type(found, "StepStarted")
    assert of_type(found, "Moved")[0]["to"] == "triage"
    [incident] = (await cloud.call("neocloud.fleet.v1.IncidentService/List")).items
    assert (incident.node, incident.cluster_id, incident.summary.credited_seconds) == (HOST, "", 0)
    assert (await cloud.call("neocloud.fleet.v1.IncidentService/Get", id=incident.id)).id == incident.id
    [proof] = (await cloud.call("neocloud.fleet.v1.CertificateService/List")).items
    assert (proof.node_id, proof.is_valid) == (HOST, True)
    await cloud.create_cluster(count=1, name="another")


async def test_parts_of_a_host_are_those_that_its_own_agent_reads(cloud: HostedCloud) -> None:
    cloud.hosts.parts = (
        HostPart("nvme", "nvme0", "DC-1", "S1", "1.0"),
        HostPart("gpu", "0000:01:00.0", "H100", "G1"),
    )
    await cloud.watched_host()
    node = await cloud.host_when(lambda node: node.inventory.parts)
    assert node.inventory.reader == "host"
    assert {(each.kind, each.serial) for each in node.inventory.parts} == {("nvme", "S1"), ("gpu", "G1")}
    cloud.hosts.parts = cloud.hosts.parts[1:]
    await cloud.host_when(lambda node: [each.serial for each in node.inventory.parts] == ["G1"])
    found = (await cloud.call(f"{NODES}/ListParts", node_id=HOST)).items
    assert {each.serial for each in found if not each.places[0].HasField("until")} == {"G1"}
    assert {place.node_id for each in found for place in each.places} == {HOST} and len(found) == 2
    changes = of_type(await cloud.host_events(), "InventoryChanged")
    assert len(changes) == 2, "a list that is known is no event"


async def test_a_host_that_has_started_again_takes_work_while_it_is_verified(cloud: HostedCloud) -> None:
    await cloud.watched_host()
    cloud.hosts.age_s = 3600.0  # its agent has not spoken yet
    cloud.hosts.boot = "boot-2"
    node = await cloud.host_when(lambda node: node.boot == "boot-2" and node.phase == "verifying")
    assert not node.advice and not node.is_schedulable
    await cloud.create_cluster(count=1)
    assert (await cloud.host()).phase == "verifying"
    cloud.hosts.age_s = 0.0
    await cloud.host_when(lambda node: node.phase == "in_service" and node.certificate.boot == "boot-2")
    assert not of_type(await cloud.host_events(), "StepStarted")


async def test_what_is_in_shadow_what_hangs_and_what_cannot_be_read_drains_nothing(
    cloud: HostedCloud,
) -> None:
    await cloud.watched_host()
    cloud.hosts.said = (*GOOD, ("memory_errors_corrected", Status.FAIL, "7"))
    cloud.hosts.age_s = 3600.0
    node = await cloud.host_when(lambda node: "its agent says nothing" in node.held)
    assert "has checked nothing for 3600 s" in node.held and node.phase == "in_service" and not node.advice
    unknown = [each for each in of_type(await cloud.host_events(), "Verdict") if each["status"] == "unknown"]
    assert unknown[-1]["check"] == "node agent", "that it hangs is a finding"
    cloud.hosts.problem = "nobody answers"
    node = await cloud.host_when(lambda node: node.problem)
    assert "nobody answers" in node.problem and node.phase == "in_service"
    await cloud.create_cluster(count=1)
    cloud.hosts.problem, cloud.hosts.age_s = "", 0.0
    await cloud.host_when(lambda node: not node.problem and not node.held)
    cloud.hosts.problem = "nobody answers"
    await cloud.host_when(lambda node: node.problem)
    await cloud.call(f"{NODES}/Drain", id=HOST, reason="new firmware")
    await cloud.drained_is_written(HOST)
    assert "new firmware" in (await cloud.new_cluster_refusal()).message, "a person needs no look"
    assert (await cloud.host()).problem
    await cloud.call(f"{NODES}/Release", id=HOST)
    await cloud.drained_is_written()
    await cloud.create_cluster(count=1, name="another")


async def test_a_window_of_a_host_is_one_of_its_workers_and_is_not_charged(cloud: HostedCloud) -> None:
    await cloud.watched_host()
    await cloud.watched(2, 0)
    now = datetime.now(UTC)
    spec = {"start_at": text(now), "end_at": text(now + timedelta(hours=1)), "reason": "New driver"}
    metadata = {"parent_id": cloud.tenant_id}
    for wrong in ({"host": "no-such"}, {"host": HOST, "cluster_id": cloud.cluster_id}, {}):
        refused = await cloud.refusal(f"{WINDOWS}/Create", metadata=metadata, spec={**spec, **wrong})
        assert refused.code in (Code.INVALID_ARGUMENT, Code.NOT_FOUND), refused.message
    made = await cloud.call(f"{WINDOWS}/Create", metadata=metadata, spec={**spec, "host": HOST})
    window = made.resource_id
    await cloud.host_when(lambda node: [hold.owner for hold in node.holds] == [f"window:{window}"])
    nodes = await cloud.settled(drained=2)
    assert all([hold.owner for hold in node.holds] == [f"window:{window}"] for node in nodes.values())
    assert "New driver" in (await cloud.new_cluster_refusal()).message
    assert {each.evidence for each in await cloud.credited("worker-0", "worker-1")} == {window}
    await cloud.call(f"{WINDOWS}/Delete", id=window)
    await cloud.host_when(lambda node: node.phase == "in_service" and not node.holds)
    await cloud.settled(in_service=2)


async def test_maintenance_of_the_host_that_operators_announced_is_not_charged(cloud: HostedCloud) -> None:
    """Root of a cluster can write the same reason in Slurm; without maintenance it is its own drain."""
    await cloud.watched(2, 0)
    reason = "[neocloud] maintenance by root of the cluster"
    await cloud.scontrol("worker-1", "DRAIN", reason)
    node = await cloud.phase_of("worker-1", "drained")
    assert [hold.owner for hold in node.holds] == ["maintenance"]
    await cloud.scontrol("worker-1", "RESUME")
    await cloud.settled(in_service=2)
    spec = {"start_at": text(datetime.now(UTC)), "reason": "Fan"}
    metadata = {"parent_id": cloud.tenant_id, "name": "fan"}
    service = "neocloud.operator.v1.MaintenanceService"
    made = (await cloud.call(f"{service}/Create", metadata=metadata, spec=spec)).resource_id
    nodes = await cloud.settled(drained=2)
    assert {each.evidence for each in await cloud.credited(*nodes)} == {made}
    held = [hold.owner for node in (await cloud.nodes()).values() for hold in node.holds]
    assert held == [f"window:{made}"] * 2
    await cloud.call(f"{service}/Delete", id=made)
    await cloud.settled(in_service=2)


async def test_an_administrator_of_another_tenant_neither_sees_nor_drains_a_host(cloud: HostedCloud) -> None:
    await cloud.watched_host()
    other = await iam.bootstrap(
        cloud.running.store, SystemClock(), tenant_name="other-bank", make_key=keys.other_rsa_key
    )
    outsider = replace(cloud, token=await sign_in(cloud.channel, other.credentials))
    methods = (("Get", {}), ("ListEvents", {}), ("Drain", {"reason": "mine"}), ("Release", {}))
    for name in (HOST, "no-such", f"/{HOST}"):
        for verb, fields in methods:
            refused = await outsider.refusal(f"{NODES}/{verb}", id=name, **fields)
            assert refused.code is Code.PERMISSION_DENIED and HOST not in refused.message


# Pure


def known(*events: e.Event) -> PoolLog:
    log = PoolLog.of(f"{HOST_POOL_ID_PREFIX}-e00x")
    for event in events:
        log.fleet.apply(event)
    return log


def test_records_of_an_earlier_boot_and_a_host_that_left() -> None:
    hosts = [Host("a", "b2", 0.0), Host("b", "b1", 0.0)]
    log = known()
    for event in new_host_events(log, hosts, [], 10.0):
        log.fleet.apply(event)
    assert {name: state.boot for name, state in log.fleet.nodes.items()} == {"a": "b2", "b": "b1"}
    old = e.Verdict(11.0, "a", "v", "gpu_lost", Status.FAIL, "b1", "gone", "0", "gpud", "1")
    assert new_host_events(log, hosts, [old], 12.0) == []
    (left,) = new_host_events(log, hosts[:1], [], 13.0)
    assert isinstance(left, e.DrainRequested) and left.node == "b"
    log.fleet.apply(left)
    assert drained_host(log.fleet.nodes["b"]) is None, "nobody places anything there"
    (back,) = new_host_events(log, hosts, [], 14.0)
    assert isinstance(back, e.DrainReleased) and back.node == "b"


def test_only_what_was_said_after_a_whole_round_ends_the_drain_of_a_fault() -> None:
    log = known(
        e.Registered(0.0, "a", "", "", Phase.DRAINED),
        e.Booted(1.0, "a", "b1"),
        e.DrainRequested(2.0, "a", e.OURS, "v1", "gpu_lost"),
        e.VerificationStarted(3.0, "a", e.Suite.FULL, 1, 1e9),
    )
    state = log.fleet.nodes["a"]

    def said(at: float, status: Status = Status.PASS, agent: Status = Status.PASS) -> e.Event | None:
        values = ("b1", "s", "t", "gpud", "1")
        found = [
            e.Verdict(at, "a", "v2", "gpu_lost", status, *values),
            e.Verdict(at, "a", "v3", "node agent", agent, *values),
        ]
        shadow = lambda check, status: "shadow" if check == "node agent" else ""  # noqa: E731
        return verification_ended(state, found, shadow, at)

    assert said(50.0) is said(200.0, Status.UNKNOWN) is said(200.0, agent=Status.UNKNOWN) is None
    passed, failed = said(200.0), said(200.0, Status.FAIL)
    assert isinstance(passed, e.VerificationEnded) and passed.passed
    assert isinstance(failed, e.VerificationEnded) and not failed.passed


def test_machines_that_may_start_elsewhere_stay_and_the_operator_reads_why() -> None:
    log = known(e.Registered(0.0, "a", "", ""), e.DrainRequested(1.0, "a", "operator:x", "fan"))
    state = log.fleet.nodes["a"]
    advice = host_advice(state, {True: 2, False: 1}, open_hosts=0)
    assert "2 of 3 machines" in advice and "there is no other host that takes new work" in advice
    assert "machines" not in host_advice(state, {False: 1}, open_hosts=0)
    assert host_advice(known(e.Registered(0.0, "a", "", "")).fleet.nodes["a"], {True: 2}, open_hosts=1) == ""


@pytest.mark.parametrize("phase", [Phase.DEBUG, Phase.RMA_OUT, Phase.RMA_RETURNED, Phase.RETIRED])
def test_a_host_with_people_starts_nothing_new_also_when_its_drain_was_released(phase: Phase) -> None:
    state = NodeState("a", phase=phase, since=5.0)
    drained = drained_host(state)
    assert drained is not None and drained.reason == f"it is in {phase.value}" and drained.since.seconds == 5
    assert drained_host(replace(state, phase=Phase.IN_SERVICE)) is None


def test_workers_follow_their_own_host_alone() -> None:
    workers = [Worker("w-0", "w", host="a"), Worker("w-1", "w", host="b")]
    log = known(*(e.Registered(0.0, each.name, "", "", Phase.DRAINED) for each in workers))
    state = known(
        e.Registered(0.0, "a", "", ""), e.DrainRequested(1.0, "a", "operator:x", "fan")
    ).fleet.nodes["a"]
    drained = drained_host(state)
    assert drained is not None
    nodes = list(log.fleet.nodes.values())
    found = list(host_drain_events(nodes, {"a": drained}, lambda host: names_on(workers, host), 5.0))
    assert found == [e.DrainRequested(5.0, "w-0", "host:a", "the host is drained: fan")]
    log.fleet.apply(found[0])
    nodes = list(log.fleet.nodes.values())
    assert not list(host_drain_events(nodes, {"a": drained}, lambda host: names_on(workers, host), 6.0))
    (end,) = host_drain_events(nodes, {}, lambda host: names_on(workers, host), 7.0)
    assert end == e.DrainReleased(7.0, "w-0", "host:a")
