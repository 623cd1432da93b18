"""Elastic node sets with fake engine and fake Slurm: workers follow the states of Slurm's power saving."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec, ElasticWorkerSpec

from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.readers import ServiceRegistry
from neocloud.core.store.protocol import HistoryEntry
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeWorld
from neocloud.services.fleet import HostNodes, ensure_host_pool
from neocloud.services.slurm import ClusterMeter, ElasticWorkerMeter
from neocloud.services.slurm.render import NodeSetView, pods
from neocloud.services.slurm.render.configuration import slurm_conf
from neocloud.services.slurm.rules import ClusterRules
from neocloud.services.slurm.slurm_records import PowerState
from neocloud.services.slurm.types import ELASTIC_WORKER, WORKER_STOPPED, WORKER_UP, ClusterState
from neocloud.testing.waiting import until
from tests.fast.services.fleet.hosts import FakeHosts, is_known, written_as_drained
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud
from tests.fast.services.slurm.test_meter import END, START, entry
from tests.fast.services.slurm.test_render import VIEW, settings

UpdateClusterRequest = contract.message("neocloud.slurm.v1.UpdateClusterRequest")
NODES = "neocloud.fleet.v1.NodeService"
ELASTIC = replace(VIEW, node_sets=(NodeSetView("worker", 4, 1, 4096, idle_seconds=60, min_count=2),))


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path) as running:
        yield running


async def elastic_cluster(cloud: FakeCloud, count: int = 2, minimum: int = 0) -> Any:
    return await cloud.create_cluster(count=count, elastic={"min_count": minimum, "idle_seconds": 60})


def workers(cloud: FakeCloud, cluster: Any) -> set[str]:
    names = {pod.reference.name for pod in cloud.world.pods_of(cluster.metadata.id)}
    return {name for name in names if name.startswith("worker-")}


async def set_power(cloud: FakeCloud, cluster: Any, name: str, state: str) -> None:
    cloud.slurm.set_power(cluster.metadata.id, name, state)
    cloud.running.worker.enqueue(cluster.metadata.id)


async def update(cloud: FakeCloud, cluster: Any, count: int, minimum: int) -> None:
    request = UpdateClusterRequest(metadata=cluster.metadata, spec=cluster.spec)
    request.metadata.resource_version = 0
    request.spec.node_sets[0].count = count
    request.spec.node_sets[0].elastic.min_count = minimum
    await cloud.call("ClusterService/Update", request)


async def charged(cloud: FakeCloud) -> list[tuple[str, str]]:
    rows = await cloud.running.store.read(lambda tx: tx.list(ELASTIC_WORKER)[0])
    return sorted((row.name, row.state) for row in rows)


async def test_a_cluster_is_ready_without_a_worker_and_slurm_knows_all_nodes(cloud):
    cluster = await elastic_cluster(cloud)
    assert workers(cloud, cluster) == set()
    assert ("create", "worker-0") in cloud.slurm.calls and ("create", "worker-1") in cloud.slurm.calls
    seen = await cloud.when(
        cluster.metadata.id, lambda found: all("POWERED_DOWN" in n.slurm_state for n in found.status.nodes)
    )
    (condition,) = [each for each in seen.status.conditions if each.type == "NodesAvailable"]
    assert condition.status == "True" and "2 are powered down" in condition.message


async def test_a_worker_appears_when_slurm_powers_its_node_up_and_is_charged_until_it_goes(cloud):
    cluster = await elastic_cluster(cloud)
    await set_power(cloud, cluster, "worker-1", "POWERING_UP")
    await until(lambda: "IDLE" in cloud.slurm.records[cluster.metadata.id]["worker-1"].states)
    await cloud.when(cluster.metadata.id, lambda seen: bool(seen.status.nodes[1].address))
    assert workers(cloud, cluster) == {"worker-1"}
    assert await charged(cloud) == [("bank-worker-1", WORKER_UP)]
    await set_power(cloud, cluster, "worker-1", "POWERING_DOWN")
    seen = await cloud.when(cluster.metadata.id, lambda seen: not seen.status.nodes[1].address)
    assert workers(cloud, cluster) == set() and await charged(cloud) == []
    assert not seen.status.nodes[1].HasField("started_at")
    assert not [call for call in cloud.slurm.calls if call[0] == "DOWN"], "it is not lost"


async def test_workers_up_to_the_minimum_stay_and_a_larger_minimum_powers_nodes_up(cloud):
    cluster = await elastic_cluster(cloud, count=3, minimum=1)
    assert workers(cloud, cluster) == {"worker-0"}
    await update(cloud, cluster, count=3, minimum=2)
    await until(lambda: workers(cloud, cluster) == {"worker-0", "worker-1"})
    assert ("POWER_UP", "worker-1") in cloud.slurm.calls


async def test_a_smaller_set_forgets_nodes_that_are_powered_down(cloud):
    cluster = await elastic_cluster(cloud, count=3)
    await update(cloud, cluster, count=1, minimum=0)
    await until(lambda: set(cloud.slurm.records[cluster.metadata.id]) == {"worker-0"})


async def test_an_elastic_worker_that_dies_is_told_to_slurm_and_comes_back(cloud):
    cluster = await elastic_cluster(cloud)
    await set_power(cloud, cluster, "worker-0", "POWERING_UP")
    await cloud.when(cluster.metadata.id, lambda seen: bool(seen.status.nodes[0].started_at.seconds))
    cloud.engine.kill(Reference("Pod", cluster.metadata.id, "worker-0"))
    cloud.running.worker.enqueue(cluster.metadata.id)
    await until(lambda: ("DOWN", "worker-0") in cloud.slurm.calls)
    await until(lambda: "IDLE" in cloud.slurm.records[cluster.metadata.id]["worker-0"].states)


async def test_a_worker_of_before_is_replaced_when_its_node_was_powered_down_and_up_unseen(tmp_path):
    """The control plane did not run meanwhile. Slurm waits for a start after it powered the node up."""
    world = FakeWorld()
    async with fake_cloud(tmp_path, world) as cloud:
        cluster = await elastic_cluster(cloud)
        await set_power(cloud, cluster, "worker-0", "POWERING_UP")
        await cloud.when(cluster.metadata.id, lambda seen: bool(seen.status.nodes[0].started_at.seconds))
    reference = Reference("Pod", cluster.metadata.id, "worker-0")
    before = world.pods[reference]
    async with fake_cloud(tmp_path, world) as cloud:
        old = cloud.slurm.records.setdefault(cluster.metadata.id, {})
        await until(lambda: "worker-0" in old)
        await cloud.when(cluster.metadata.id, lambda seen: seen.status.nodes[0].slurm_state == "IDLE")
        await set_power(cloud, cluster, "worker-0", "POWERING_UP")
        await until(lambda: world.pods.get(reference) not in (None, before))
        assert ("DOWN", "worker-0") not in cloud.slurm.calls


async def test_a_node_that_did_not_start_in_time_gets_another_chance(cloud):
    cluster = await elastic_cluster(cloud)
    records = cloud.slurm.records[cluster.metadata.id]
    failed = frozenset({"DOWN", "CLOUD", "POWERED_DOWN"})
    records["worker-0"] = replace(records["worker-0"], states=failed, reason="ResumeTimeout reached [slurm]")
    cloud.running.worker.enqueue(cluster.metadata.id)
    await until(lambda: ("RESUME", "worker-0") in cloud.slurm.calls)


def waits_for_a_host(seen: Any) -> bool:
    found = [each for each in seen.status.conditions if each.type == "ElasticWorkers"]
    return any("new firmware" in each.message and each.status == "False" for each in found)


@pytest.fixture
async def hosted(tmp_path) -> AsyncIterator[FakeCloud]:
    """A cloud on a host that is watched."""
    hosts = ServiceRegistry().add(HostNodes, FakeHosts(tmp_path / "agents"))
    async with fake_cloud(tmp_path, others=hosts) as running:
        await ensure_host_pool(running.running.store, SystemClock())
        await until(lambda: is_known(running.running.store, "gpu-1"), seconds=20)
        yield running


async def drain_host(cloud: FakeCloud) -> None:
    await cloud.call(f"{NODES}/Drain", id="gpu-1", reason="new firmware")
    await until(lambda: written_as_drained(cloud.running.store, "gpu-1"), seconds=20)


async def release_host(cloud: FakeCloud) -> None:
    await cloud.call(f"{NODES}/Release", id="gpu-1")
    await until(lambda: written_as_drained(cloud.running.store), seconds=20)


async def test_workers_wait_while_hosts_are_drained_and_slurm_does_not_try_again_and_again(hosted):
    cluster = await elastic_cluster(hosted)
    calls, records = hosted.slurm.calls, hosted.slurm.records[cluster.metadata.id]
    await drain_host(hosted)
    await set_power(hosted, cluster, "worker-1", "POWERING_UP")  # for a job that came just before the drain
    await hosted.when(cluster.metadata.id, waits_for_a_host)
    await until(lambda: "DRAIN" in records["worker-0"].states)
    assert "new firmware" in records["worker-0"].reason and "gpu-1" not in records["worker-0"].reason
    failed = frozenset({"DOWN", "CLOUD", "POWERED_DOWN"})  # by Slurm, after its ResumeTimeout
    records["worker-1"] = replace(records["worker-1"], states=failed, reason="ResumeTimeout reached [slurm]")
    hosted.running.worker.enqueue(cluster.metadata.id)
    seen = await hosted.when(
        cluster.metadata.id, lambda seen: all("DRAIN" in n.slurm_state for n in seen.status.nodes)
    )
    assert "new firmware" in seen.status.nodes[1].reason, "a tenant reads why"
    assert workers(hosted, cluster) == set() and not {"RESUME", "POWER_UP"} & {call for call, *_ in calls}
    await release_host(hosted)
    hosted.running.worker.enqueue(cluster.metadata.id)
    await until(lambda: {("RESUME", "worker-0"), ("RESUME", "worker-1")} <= set(calls))
    await set_power(hosted, cluster, "worker-1", "POWERING_UP")
    await until(lambda: workers(hosted, cluster) == {"worker-1"})
    await hosted.when(cluster.metadata.id, lambda seen: not waits_for_a_host(seen))


async def test_elastic_workers_that_run_go_on_while_hosts_are_drained(hosted):
    """Restarts, too. What an administrator drained stays drained afterwards."""
    cluster = await elastic_cluster(hosted)
    records = hosted.slurm.records[cluster.metadata.id]
    await set_power(hosted, cluster, "worker-0", "POWERING_UP")
    await hosted.when(cluster.metadata.id, lambda seen: bool(seen.status.nodes[0].started_at.seconds))
    states = frozenset({"IDLE", "CLOUD", "POWERED_DOWN", "DRAIN"})
    records["worker-1"] = replace(records["worker-1"], states=states, reason="waits for a disk")
    await drain_host(hosted)
    hosted.engine.kill(Reference("Pod", cluster.metadata.id, "worker-0"))
    hosted.running.worker.enqueue(cluster.metadata.id)
    await until(lambda: ("DOWN", "worker-0") in hosted.slurm.calls)
    await hosted.when(cluster.metadata.id, waits_for_a_host)
    await until(lambda: "IDLE" in records["worker-0"].states)
    assert workers(hosted, cluster) == {"worker-0"}
    await release_host(hosted)
    hosted.running.worker.enqueue(cluster.metadata.id)
    await hosted.when(cluster.metadata.id, lambda seen: not waits_for_a_host(seen))
    assert ("RESUME", "worker-1") not in hosted.slurm.calls and "DRAIN" in records["worker-1"].states


async def test_a_set_that_becomes_fixed_waits_for_a_host_and_keeps_no_drain(hosted):
    cluster = await elastic_cluster(hosted, minimum=1)
    await drain_host(hosted)
    records = hosted.slurm.records[cluster.metadata.id]
    await until(lambda: "DRAIN" in records["worker-1"].states)
    request = UpdateClusterRequest(metadata=cluster.metadata, spec=cluster.spec)
    request.metadata.resource_version = 0
    request.spec.node_sets[0].ClearField("elastic")
    await hosted.call("ClusterService/Update", request, headers={"x-resetmask": "spec.node_sets.*.elastic"})
    await until(lambda: ("RESUME", "worker-1") in hosted.slurm.calls)
    seen = await hosted.when(
        cluster.metadata.id, lambda seen: any("new firmware" in s.message for s in seen.status.steps)
    )
    assert not seen.spec.node_sets[0].HasField("elastic") and workers(hosted, cluster) == {"worker-0"}
    await release_host(hosted)
    await until(lambda: workers(hosted, cluster) == {"worker-0", "worker-1"})
    await hosted.until(cluster.metadata.id, "READY")
    assert "DRAIN" not in records["worker-1"].states


async def test_a_larger_minimum_waits_for_a_host(hosted):
    cluster = await elastic_cluster(hosted, count=2)
    await drain_host(hosted)
    await update(hosted, cluster, count=2, minimum=1)
    await hosted.when(cluster.metadata.id, waits_for_a_host)
    await until(lambda: "DRAIN" in hosted.slurm.records[cluster.metadata.id]["worker-0"].states)
    assert ("POWER_UP", "worker-0") not in hosted.slurm.calls
    await release_host(hosted)
    await until(lambda: workers(hosted, cluster) == {"worker-0"})


async def test_no_node_is_started_while_slurm_does_not_answer(cloud):
    cluster = await elastic_cluster(cloud)
    cloud.slurm.is_reachable = False
    cloud.running.worker.enqueue(cluster.metadata.id)
    await cloud.when(cluster.metadata.id, lambda seen: seen.status.reconciling)
    assert workers(cloud, cluster) == set()


def test_slurm_gets_power_saving_only_for_elastic_sets():
    assert "Suspend" not in slurm_conf(VIEW) and "idle_on_node_suspend" not in slurm_conf(VIEW)
    text = slurm_conf(ELASTIC)
    assert "PartitionName=worker Nodes=worker SuspendTime=60\n" in text
    assert settings(text)["SuspendExcNodes"] == "worker-[0-1]"
    assert settings(text)["SlurmctldParameters"].startswith("enable_configless,")


def test_powered_down_workers_have_no_pod_and_others_say_when_they_started():
    view = replace(ELASTIC, absent=frozenset({"worker-1"}), reports_boots=frozenset({"worker-0"}))
    found = {each["metadata"]["name"]: each for each in (pod.to_dict() for pod in pods(view))}
    assert "worker-1" not in found and "worker-2" in found
    names = [[each["name"] for each in found[f"worker-{n}"]["spec"]["containers"][0]["env"]] for n in (0, 2)]
    assert "NODE_REPORTS_BOOTS" in names[0] and "NODE_REPORTS_BOOTS" not in names[1]


@pytest.mark.parametrize(
    ("states", "is_off", "is_starting"),
    [
        ("IDLE+CLOUD", False, False),
        ("IDLE+CLOUD+POWERED_DOWN", True, False),
        ("IDLE+CLOUD+POWERING_DOWN", True, False),
        ("ALLOCATED+CLOUD+POWERING_UP", False, True),
        ("IDLE+CLOUD+POWERED_DOWN+POWER_UP", False, True),
        ("IDLE+CLOUD+POWER_DOWN", False, False),
    ],
)
def test_power_states_of_nodes(states, is_off, is_starting):
    assert PowerState.of(states.split("+")) == PowerState(is_off, is_starting)


def test_idle_seconds_have_a_default_and_a_minimum_is_not_more_than_the_count(cluster, world):
    rules = ClusterRules()
    cluster.spec.node_sets[0].elastic.min_count = 2
    rules.defaults(cluster)
    assert cluster.spec.node_sets[0].elastic.idle_seconds == 300
    assert not list(rules.violations(cluster, None, world))
    cluster.spec.node_sets[0].elastic.min_count = 3
    (found,) = rules.violations(cluster, None, world)
    assert found.field == "spec.node_sets[0].elastic.min_count"
    cluster.spec.node_sets[0].name, cluster.spec.node_sets[0].elastic.min_count = "main", 0
    assert [each.field for each in rules.violations(cluster, None, world)] == ["spec.node_sets[0].elastic"]


def test_the_quota_of_an_elastic_set_is_that_of_all_its_workers(cluster):
    cluster.spec.node_sets[0].elastic.min_count = 0
    assert ClusterRules().quota_demand(cluster)["slurm.node.count"] == 2


def test_only_the_workers_that_are_there_are_charged():
    spec = ElasticWorkerSpec(cluster_id="slurmcluster-e00bank", platform="cpu-local", preset="1vcpu-4gb")
    cluster = entry(0, ClusterState.READY, 0)
    states = [
        (10, WORKER_UP, False),
        (20, WORKER_STOPPED, False),
        (30, WORKER_UP, False),
        (40, WORKER_UP, True),
    ]
    history: list[HistoryEntry] = [
        replace(
            cluster,
            kind=ELASTIC_WORKER,
            spec=spec.SerializeToString(),
            at=entry(minutes, ClusterState.READY, 0).at,
            state=state,
            is_deleted=is_deleted,
        )
        for minutes, state, is_deleted in states
    ]
    used = [(record.sku, record.unit_seconds) for record in ElasticWorkerMeter()(history, START, END)]
    assert used == [
        (sku, units * 600) for _ in range(2) for sku, units in (("cpu-local.vcpu", 1), ("cpu-local.ram", 4))
    ]


def test_the_cluster_itself_does_not_charge_for_elastic_sets():
    known = entry(0, ClusterState.READY, 2)
    spec = ClusterSpec.FromString(known.spec)
    spec.node_sets[0].elastic.min_count = 1
    assert list(ClusterMeter()([replace(known, spec=spec.SerializeToString())], START, END)) == []
