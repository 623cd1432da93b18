"""From a worker that breaks to one that is back, with a fake engine and a fake Slurm."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeWorld
from neocloud.services import iam
from neocloud.services.slurm.public import NODE_POOL, WorkersUnreachable
from neocloud.services.slurm.worker_nodes import ClusterWorkers, exit_words
from neocloud.testing.waiting import until
from tests.control_plane import sign_in
from tests.fast.services.iam import keys
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud

pytestmark = pytest.mark.slow

NODES = "neocloud.fleet.v1.NodeService"
INCIDENTS = "neocloud.fleet.v1.IncidentService"


class WatchedCloud(FakeCloud):
    cluster_id = ""

    async def watched(self, count: int, spares: int) -> None:
        """Create a cluster whose workers are watched; return when each has found its place."""
        workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": count}
        spec = {"node_sets": [{**workers, "spare_count": spares}], "auto_repair": True}
        self.cluster_id = await self.create("Cluster", "bank", spec)
        await self.until(self.cluster_id, "READY")
        await self.settled(in_service=count - spares, ready_spare=spares)

    async def nodes(self) -> dict[str, Any]:
        found = await self.call(f"{NODES}/List", cluster_id=self.cluster_id)
        return {node.name: node for node in found.items}

    async def settled(self, **phases: int) -> dict[str, Any]:
        """Return the nodes once so many are in each of these phases, and no others."""
        wanted = {phase: number for phase, number in phases.items() if number}

        async def counted() -> dict[str, Any] | None:
            nodes = await self.nodes()
            count: dict[str, int] = {}
            for node in nodes.values():
                count[node.phase] = count.get(node.phase, 0) + 1
            return nodes if count == wanted else None

        try:
            return await eventually(counted)
        except AssertionError as error:
            raise AssertionError(f"not {wanted}: {await self.nodes()}") from error

    async def phase_of(self, name: str, phase: str) -> Any:
        async def found() -> Any:
            node = (await self.nodes())[name]
            return node if node.phase == phase else None

        try:
            return await eventually(found)
        except AssertionError as error:
            raise AssertionError(f"{name} is not {phase}: {await self.events(name)}") from error

    async def events(self, name: str) -> list[dict[str, Any]]:
        found = await self.call(f"{NODES}/ListEvents", id=f"{self.cluster_id}/{name}", page_size=500)
        return [json.loads(each.json) for each in found.items]

    def states(self, name: str) -> frozenset[str]:
        return self.slurm.records[self.cluster_id][name].states

    def reason(self, name: str) -> str:
        return self.slurm.records[self.cluster_id][name].reason

    async def scontrol(self, name: str, state: str, reason: str = "") -> None:
        controller = Reference("Pod", self.cluster_id, "controller-0")
        await self.slurm.connect(self.world.addresses[controller], b"").set_node_state(name, state, reason)
        line = f"slurmctld: update_node: node {name} state set to {state}"
        self.engine.write_log(controller, "controller", line)

    def kill(self, name: str) -> None:
        self.engine.kill(Reference("Pod", self.cluster_id, name))


async def eventually(found: Any, seconds: float = 15.0) -> Any:
    """Return what `found` answers once it is something."""
    return await until(found, seconds=seconds, poll_seconds=0.1)


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[WatchedCloud]:
    async with fake_cloud(tmp_path) as running:
        yield WatchedCloud(**vars(running))


def of_type(events: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [each for each in events if each["type"] in names]


async def test_workers_take_jobs_once_verified_and_a_spare_takes_none(cloud: WatchedCloud) -> None:
    await cloud.watched(3, 1)
    nodes = await cloud.nodes()
    (spare,) = [name for name, node in nodes.items() if node.is_spare]
    await until(lambda: "DRAIN" in cloud.states(spare) and cloud.reason(spare) == "neocloud: spare")
    for name, node in nodes.items():
        assert node.HasField("certificate") and node.certificate.boot == node.boot
        if name != spare:
            await until(lambda name=name: "DRAIN" not in cloud.states(name))
            assert node.is_schedulable


async def test_a_dead_worker_is_drained_replaced_verified_and_becomes_the_spare(cloud: WatchedCloud) -> None:
    await cloud.watched(3, 1)
    nodes = await cloud.nodes()
    (spare,) = [name for name, node in nodes.items() if node.is_spare]
    broken = next(name for name in nodes if name != spare)
    cloud.kill(broken)
    await cloud.phase_of(broken, "ready_spare")
    node = (await cloud.settled(in_service=2, ready_spare=1))[broken]
    incident = node.last_incident
    assert incident.spare == spare
    assert incident.reason == (
        "it started again without being asked to: its pod was ended by signal 9 (SIGKILL); the kernel sends "
        "it where memory is short"
    )
    times = ("detected", "decided", "reserved", "attached", "ready", "repaired")
    order = [getattr(incident, f"{name}_at").ToNanoseconds() for name in times]
    assert all(order) and order[:5] == sorted(order[:5]) and order[5] >= order[1]
    assert (await cloud.nodes())[spare].phase == "in_service" and "DRAIN" not in cloud.states(spare)
    await until(lambda: cloud.reason(broken) == "neocloud: spare" and "DRAIN" in cloud.states(broken))
    drains = of_type(await cloud.events(broken), "DrainRequested")
    assert [each["owner"] for each in drains] == ["neocloud"]


async def test_a_worker_that_is_killed_before_it_was_in_service_is_an_incident(
    cloud: WatchedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_measured, measure = asyncio.Event(), ClusterWorkers.measure

    async def late(*arguments: Any) -> Any:
        if not is_measured.is_set():
            raise WorkersUnreachable("not yet")
        return await measure(*arguments)

    monkeypatch.setattr(ClusterWorkers, "measure", late)
    workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 2}
    spec = {"node_sets": [workers], "auto_repair": True}
    cloud.cluster_id = await cloud.create("Cluster", "bank", spec)
    await cloud.until(cloud.cluster_id, "READY")
    await cloud.settled(verifying=2)
    cloud.kill("worker-0")

    async def incidents() -> Any:
        found = await cloud.call(f"{INCIDENTS}/List", cluster_id=cloud.cluster_id)
        return found.items

    (incident,) = await eventually(incidents)
    assert incident.node == "worker-0" and incident.summary.reason.startswith(
        "it started again without being asked to: its pod was ended by signal 9 (SIGKILL)"
    )
    assert incident.state == "open" and not incident.summary.spare
    is_measured.set()
    await cloud.settled(in_service=2)
    (incident,) = await incidents()
    assert incident.state == "ended" and incident.HasField("returned_at")


async def test_a_lost_pod_is_never_schedulable_before_it_is_verified(cloud: WatchedCloud) -> None:
    await cloud.watched(2, 0)
    cloud.slurm.calls.clear()
    cloud.kill("worker-0")
    await eventually(lambda: _is_repaired(cloud, "worker-0"))
    events = await cloud.events("worker-0")
    calls = [call for call in cloud.slurm.calls if call[-1] == "worker-0"]
    assert ("DOWN", "worker-0") in calls and calls.count(("RESUME", "worker-0")) == 1
    assert calls.index(("DRAIN", "worker-0")) < calls.index(("DOWN", "worker-0"))
    passed = of_type(events, "VerificationEnded")[-1]
    assert passed["passed"]


async def test_a_report_below_the_preset_drains_a_node_and_three_failures_end_in_triage(
    cloud: WatchedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neocloud.services.fleet.sources.MEASURE_EVERY", 0.5)
    await cloud.watched(2, 0)
    cloud.slurm.figures["worker-1"] = {"cpus": 0.5}
    node = await cloud.phase_of("worker-1", "triage")
    assert [fault.check for fault in node.faults] == ["cpu"]
    assert node.faults[0].sample == "0.5 vCPU" and node.faults[0].threshold == ">= 1 vCPU"
    reason = cloud.reason("worker-1")
    assert reason.startswith(f"neocloud: {node.last_incident.evidence} cpu: 0.5 vCPU (wanted >= 1 vCPU")
    actions = [each["action"] for each in of_type(await cloud.events("worker-1"), "StepStarted")]
    assert actions[0] == "reboot" and set(actions[1:]) == {"power_cycle", "reimage"}
    cloud.slurm.figures.clear()
    await cloud.call(f"{NODES}/Release", id=node.id)
    await cloud.phase_of("worker-1", "in_service")
    await until(lambda: "DRAIN" not in cloud.states("worker-1"))


async def test_a_foreign_drain_is_never_undone(cloud: WatchedCloud) -> None:
    await cloud.watched(2, 0)
    await cloud.scontrol("worker-0", "DRAIN", "bad fan")
    node = await cloud.phase_of("worker-0", "drained")
    assert [(hold.owner, hold.evidence) for hold in node.holds] == [("slurm", "bad fan")]
    cloud.kill("worker-0")
    await until(lambda: ("DOWN", "worker-0") in cloud.slurm.calls)
    await eventually(lambda: _booted(cloud, "worker-0", node.boot))
    assert ("RESUME", "worker-0") not in cloud.slurm.calls[-3:]
    assert cloud.reason("worker-0") == "bad fan" and "DRAIN" in cloud.states("worker-0")
    await cloud.scontrol("worker-0", "RESUME")
    await cloud.phase_of("worker-0", "in_service")


async def _booted(cloud: WatchedCloud, name: str, before: str) -> bool:
    return (await cloud.nodes())[name].boot != before


async def test_an_operator_drains_and_alone_releases(cloud: WatchedCloud) -> None:
    await cloud.watched(2, 0)
    node_id = f"{cloud.cluster_id}/worker-0"
    await cloud.call(f"{NODES}/Drain", id=node_id, reason="swap\ncable")
    node = await cloud.phase_of("worker-0", "drained")
    assert node.holds[0].owner.startswith("operator:") and "swap cable" in cloud.reason("worker-0")
    refused = await cloud.refusal(f"{NODES}/Drain", id=node_id, reason="again")
    assert "already" in refused.message
    await cloud.call(f"{NODES}/Release", id=node_id)
    await cloud.phase_of("worker-0", "in_service")
    refused = await cloud.refusal(f"{NODES}/Release", id=node_id)
    assert "It is not drained" in refused.message


async def test_an_operator_moves_a_node_through_debug_and_rma_and_its_history_says_who_and_why(
    cloud: WatchedCloud,
) -> None:
    """OBS-09: no phase that people move nodes to is out of reach, and none leads into service by itself."""
    await cloud.watched(2, 0)
    node_id = f"{cloud.cluster_id}/worker-0"

    async def move(phase: str, reason: str = "case 4711") -> str:
        return (await cloud.call(f"{NODES}/Move", id=node_id, phase=phase, reason=reason)).phase

    refused = await cloud.refusal(f"{NODES}/Move", id=node_id, phase="debug", reason="x")
    assert "is in_service. Drain it first" in refused.message
    await cloud.call(f"{NODES}/Drain", id=node_id, reason="it is slow")
    await cloud.phase_of("worker-0", "drained")
    for wrong in ("in_service", "ready_spare", "nowhere"):
        refused = await cloud.refusal(f"{NODES}/Move", id=node_id, phase=wrong, reason="x")
        assert refused.code is Code.INVALID_ARGUMENT and "rma_out" in refused.message
    refused = await cloud.refusal(f"{NODES}/Move", id=node_id, phase="debug", reason="x")
    assert "From there it can be moved to maintenance, quarantined_rack, retired, triage" in refused.message
    assert (
        "printable" in (await cloud.refusal(f"{NODES}/Move", id=node_id, phase="triage", reason="\n")).message
    )
    for phase in ("triage", "debug", "rma_out", "rma_returned"):
        assert await move(phase, f"to {phase}\ncase 4711") == phase
        assert "DRAIN" in cloud.states("worker-0"), "no job starts there"
    told = of_type(await cloud.events("worker-0"), "Moved")
    assert [(each["to"], each["why"]) for each in told] == [
        (phase, f"to {phase} case 4711") for phase in ("triage", "debug", "rma_out", "rma_returned")
    ]
    assert all(each["by"].startswith("operator:") for each in told)
    await cloud.call(f"{NODES}/Release", id=node_id)
    await cloud.call(f"{NODES}/Release", id=node_id)
    await cloud.phase_of("worker-0", "in_service")
    await until(lambda: "DRAIN" not in cloud.states("worker-0"))
    await cloud.call(f"{NODES}/Drain", id=node_id, reason="it is sold")
    await cloud.phase_of("worker-0", "drained")
    assert await move("retired", "sold") == "retired"
    refused = await cloud.refusal(f"{NODES}/Move", id=node_id, phase="triage", reason="x")
    assert "permanently out of the fleet" in refused.message
    await cloud.call(f"{NODES}/Release", id=node_id)
    assert (await cloud.nodes())["worker-0"].phase == "retired" and "DRAIN" in cloud.states("worker-0")


async def test_while_slurm_does_not_answer_nothing_is_done_and_the_node_says_so(cloud: WatchedCloud) -> None:
    await cloud.watched(2, 0)
    before = await cloud.events("worker-0")
    cloud.slurm.is_reachable = False
    cloud.slurm.calls.clear()
    cloud.engine.write_log(
        Reference("Pod", cloud.cluster_id, "controller-0"), "controller", "fatal: disk full"
    )

    async def is_blind() -> bool:
        return "Slurm" in (await cloud.nodes())["worker-0"].problem

    await eventually(is_blind)
    assert await cloud.events("worker-0") == before and not cloud.slurm.calls
    cloud.slurm.is_reachable = True
    cloud.kill("worker-0")
    await eventually(lambda: _is_repaired(cloud, "worker-0"))


async def _is_repaired(cloud: WatchedCloud, name: str) -> bool:
    node = (await cloud.nodes())[name]
    return node.phase == "in_service" and node.last_incident.HasField("repaired_at")


async def test_of_many_nodes_that_fail_at_once_breakers_drain_two(cloud: WatchedCloud) -> None:
    """The others stay as they are: kept from new jobs by their cluster, and not repaired."""
    await cloud.watched(10, 0)
    for index in range(4):
        cloud.kill(f"worker-{index}")

    async def held() -> dict[str, Any] | None:
        nodes = await cloud.nodes()
        found = {name: node for name, node in nodes.items() if "breaker" in node.held}
        return found if len(found) == 2 else None

    stuck = await eventually(held)
    assert all(node.phase == "suspect" and not node.is_schedulable for node in stuck.values())
    for name in stuck:
        assert "DRAIN" in cloud.states(name) and cloud.reason(name).startswith("neocloud: lost: ")
        assert not of_type(await cloud.events(name), "StepStarted")


async def test_a_spare_that_fails_its_checks_is_not_used(
    cloud: WatchedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neocloud.services.fleet.sources.MEASURE_EVERY", 0.5)
    await cloud.watched(3, 1)
    (spare,) = [name for name, node in (await cloud.nodes()).items() if node.is_spare]
    cloud.slurm.figures[spare] = {"memory_mib": 17}
    await cloud.phase_of(spare, "triage")
    broken = next(name for name in await cloud.nodes() if name != spare)
    cloud.kill(broken)
    await eventually(lambda: _is_repaired(cloud, broken))
    assert (await cloud.nodes())[broken].last_incident.spare == ""
    reserved = of_type(await cloud.events(spare), "SpareReserved")
    assert not reserved and "DRAIN" in cloud.states(spare)


async def test_a_restarted_control_plane_folds_the_same_state_and_repeats_nothing(tmp_path) -> None:
    world = FakeWorld()
    async with fake_cloud(tmp_path, world) as running:
        cloud = WatchedCloud(**vars(running))
        await cloud.watched(3, 1)
        slurm = cloud.slurm
        before = {name: await cloud.events(name) for name in await cloud.nodes()}
    async with fake_cloud(tmp_path, world) as running:
        again = WatchedCloud(**vars(running))
        again.cluster_id = cloud.cluster_id
        again.slurm.records |= slurm.records
        pools = await again.running.store.read(lambda tx: [row.id for row in tx.list(NODE_POOL)[0]])
        await again.until(pools[0], "ACTIVE")
        again.kill("worker-0")
        await eventually(lambda: _booted(again, "worker-0", before["worker-0"][1]["boot"]))
        for name, events in before.items():
            assert (await again.events(name))[: len(events)] == events
        unharmed = next(name for name in before if name != "worker-0")
        assert not [
            each
            for each in of_type(await again.events(unharmed), "DrainRequested", "StepStarted")
            if each not in before[unharmed]
        ]


async def test_an_administrator_of_another_tenant_sees_and_drains_no_node(cloud: WatchedCloud) -> None:
    await cloud.watched(2, 0)
    other = await iam.bootstrap(
        cloud.running.store, SystemClock(), tenant_name="other-bank", make_key=keys.other_rsa_key
    )
    outsider = replace(cloud, token=await sign_in(cloud.channel, other.credentials))
    before = await cloud.events("worker-0")
    messages: set[str] = set()
    for node in (f"{cloud.cluster_id}/worker-0", "slurmcluster-e00none/worker-0"):
        for verb, more in (("Get", {}), ("ListEvents", {}), ("Drain", {"reason": "x"}), ("Release", {})):
            refused = await outsider.refusal(f"{NODES}/{verb}", id=node, **more)
            assert refused.code is Code.PERMISSION_DENIED
            messages.add(refused.message)
    assert len(messages) == 1, "they do not say what exists"
    assert (await outsider.refusal(f"{NODES}/List")).code is Code.PERMISSION_DENIED
    assert await cloud.events("worker-0") == before


async def test_a_node_that_is_not_there_is_not_found(cloud: WatchedCloud) -> None:
    await cloud.watched(2, 0)
    for node in ("slurmcluster-e00none/worker-0", f"{cloud.cluster_id}/worker-9", "worker-0", "/", "a/b/c"):
        assert (await cloud.refusal(f"{NODES}/Get", id=node)).code is Code.NOT_FOUND


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, ""),
        (0, "its pod ended with exit code 0"),
        (3, "its pod ended with exit code 3"),
        (128, "its pod ended with exit code 128"),
        (143, "its pod was ended by signal 15 (SIGTERM)"),
        (137, "its pod was ended by signal 9 (SIGKILL); the kernel sends it where memory is short"),
        (128 + 33, "its pod was ended by signal 33 (unknown)"),
        (255, "its pod ended with exit code 255"),
    ],
)
def test_how_a_pod_ended_is_said_in_words(code: int | None, words: str) -> None:
    assert exit_words(code) == words
