"""Clusters reach their desired state with fake engine and fake Slurm (SLURM-01, SLURM-10, SLURM-11, SLURM-19,
SLURM-20).
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from neocloud.control_plane.composition import SERVICES, record_stop
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.store import load_or_make_key, open_store
from neocloud.emulator.fakes import FakeSlurmApi
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeWorld
from neocloud.engines.fake.faults import Faults
from neocloud.services.slurm.reconcile import login_port, nodes
from neocloud.services.slurm.reconcile.login_port import ClosedAddresses, free_port
from neocloud.services.slurm.rules import LoginPorts
from neocloud.settings.settings import Settings
from neocloud.testing.waiting import until
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud

UpdateClusterRequest = contract.message("neocloud.slurm.v1.UpdateClusterRequest")


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path) as running:
        yield running


async def scale(cloud: FakeCloud, cluster, count: int):
    request = UpdateClusterRequest(metadata=cluster.metadata, spec=cluster.spec)
    request.metadata.resource_version = 0
    request.spec.node_sets[0].count = count
    return await cloud.call("ClusterService/Update", request)


def pods(cloud: FakeCloud, cluster) -> set[str]:
    return {pod.reference.name for pod in cloud.world.pods_of(cluster.metadata.id)}


async def test_a_cluster_becomes_ready_with_all_its_pods(cloud):
    cluster = await cloud.create_cluster(count=2)
    assert pods(cloud, cluster) == {"accounting-0", "controller-0", "login-0", "worker-0", "worker-1"}
    assert [node.name for node in cluster.status.nodes] == ["worker-0", "worker-1"]
    assert cluster.status.login.port
    assert all(step.outcome == "ok" for step in cluster.status.steps)


@pytest.mark.parametrize("has_settled", [True, False])
async def test_a_run_that_changes_nothing_observes_once_and_reads_the_nodes_once(
    cloud, monkeypatch, has_settled
):
    """Slurm's release, too, is asked for while pods are new: it comes with them."""
    cluster = await cloud.create_cluster(count=1)
    if not has_settled:
        monkeypatch.setattr(nodes, "SETTLED_AFTER", timedelta(days=36500))
    await until(lambda: not cloud.running.worker.under_way)
    asked: list[str] = []
    observe = cloud.engine.observe

    async def observed(namespace: str):
        asked.extend(["observe"] if namespace == cluster.metadata.id else [])
        return await observe(namespace)

    def counted(name: str):
        real = getattr(FakeSlurmApi, name)

        def ask(api: FakeSlurmApi):
            asked.append(name)
            return real(api)

        monkeypatch.setattr(FakeSlurmApi, name, ask)

    monkeypatch.setattr(cloud.engine, "observe", observed)
    counted("nodes")
    counted("version")
    cloud.engine.applied.clear()
    cloud.running.worker.enqueue(cluster.metadata.id)
    await until(lambda: cloud.engine.applied)
    await until(lambda: not cloud.running.worker.under_way)
    runs = len([each for each in cloud.engine.applied if each[0].namespace == cluster.metadata.id])
    assert asked.count("observe") == asked.count("nodes") == runs
    assert asked.count("version") == (0 if has_settled else runs)


async def test_a_larger_node_set_gets_more_workers(cloud):
    cluster = await cloud.create_cluster(count=1)
    await scale(cloud, cluster, 3)
    await until(lambda: {"worker-1", "worker-2"} <= pods(cloud, cluster))


async def test_login_nodes_come_and_go_with_a_balancer_before_several(cloud):
    cluster = await cloud.create_cluster(count=1)
    port = cluster.status.login.port
    request = UpdateClusterRequest(metadata=cluster.metadata, spec=cluster.spec)
    request.metadata.resource_version = 0
    request.spec.login.count = 2
    await cloud.call("ClusterService/Update", request)
    names = ["login-0", "login-1", "balancer-0"]
    cluster = await cloud.when(
        cluster.metadata.id,
        lambda seen: [node.name for node in seen.status.login.nodes if node.ready] == names,
    )
    assert set(names) <= pods(cloud, cluster) and cluster.status.login.port == port
    request.spec.login.count = 1
    await cloud.call("ClusterService/Update", request)
    await until(lambda: "login-1" not in pods(cloud, cluster))
    cluster = await cloud.until(cluster.metadata.id, "READY")
    assert cluster.status.login.port == port
    assert "balancer-0" in pods(cloud, cluster), "sessions pass through it"


async def test_the_status_says_which_login_node_is_drained_and_one_must_be_left(cloud):
    cluster = await cloud.create_cluster(count=1)
    request = UpdateClusterRequest(metadata=cluster.metadata, spec=cluster.spec)
    request.metadata.resource_version = 0
    request.spec.login.count = 2
    request.spec.login.drained_nodes.append("login-1")
    await cloud.call("ClusterService/Update", request)
    cluster = await cloud.when(
        cluster.metadata.id,
        lambda seen: [node.name for node in seen.status.login.nodes if node.drained] == ["login-1"],
    )
    drained = cloud.world.objects[Reference("ConfigMap", cluster.metadata.id, "login-nodes")].to_dict()
    assert drained["data"] == {"drained": "login-1\n"}
    for names in (
        ["login-0", "login-1"],
        ["login-2"],
        ["login-1", "login-1"],
        ["login-1\n"],
        ["controller-0"],
    ):
        del request.spec.login.drained_nodes[:]
        request.spec.login.drained_nodes.extend(names)
        refused = await cloud.refusal("ClusterService/Update", request)
        assert refused.code == contract.Code.INVALID_ARGUMENT, names


async def test_a_smaller_node_set_leaves_no_node_behind(cloud):
    cluster = await cloud.create_cluster(count=3)
    await scale(cloud, cluster, 1)
    await until(lambda: set(cloud.slurm.records[cluster.metadata.id]) == {"worker-0"})
    assert ("DRAIN", "worker-2") in cloud.slurm.calls
    assert "worker-1" not in pods(cloud, cluster)


async def test_a_dead_worker_is_told_to_slurm_and_comes_back(cloud):
    cluster = await cloud.create_cluster(count=2)
    cloud.engine.kill(Reference("Pod", cluster.metadata.id, "worker-1"))
    await until(lambda: ("DOWN", "worker-1") in cloud.slurm.calls)
    await until(lambda: "IDLE" in cloud.slurm.records[cluster.metadata.id]["worker-1"].states)
    assert ("DOWN", "worker-0") not in cloud.slurm.calls


async def test_a_worker_lost_together_with_the_controller_is_told_to_slurm_later(cloud):
    cluster = await cloud.create_cluster(count=1)
    cloud.slurm.is_reachable = False
    cloud.engine.kill(Reference("Pod", cluster.metadata.id, "worker-0"))
    await cloud.when(cluster.metadata.id, lambda seen: seen.status.nodes[0].restarts)
    assert ("DOWN", "worker-0") not in cloud.slurm.calls
    cloud.slurm.is_reachable = True
    await until(lambda: ("DOWN", "worker-0") in cloud.slurm.calls)
    await until(lambda: "IDLE" in cloud.slurm.records[cluster.metadata.id]["worker-0"].states)


async def test_a_worker_that_restarts_while_the_cluster_is_reconciled_is_told_to_slurm(cloud, monkeypatch):
    """Its loss falls between the two observations of one run."""
    cluster = await cloud.create_cluster(count=1)
    apply = cloud.engine.apply
    kills = [Reference("Pod", cluster.metadata.id, "worker-0")]

    async def killed_meanwhile(objects) -> bool:
        await apply(objects)
        while kills:
            cloud.engine.kill(kills.pop())
        return True

    monkeypatch.setattr(cloud.engine, "apply", killed_meanwhile)
    cloud.running.worker.enqueue(cluster.metadata.id)
    await until(lambda: ("DOWN", "worker-0") in cloud.slurm.calls)
    await until(lambda: "IDLE" in cloud.slurm.records[cluster.metadata.id]["worker-0"].states)


async def found(cloud: FakeCloud, cluster):
    request = contract.message("neocloud.slurm.v1.GetClusterRequest")(id=cluster.metadata.id)
    return await cloud.call("ClusterService/Get", request)


async def test_a_lost_controller_is_made_again(cloud):
    cluster = await cloud.create_cluster(count=1)
    cloud.engine.lose(Reference("Pod", cluster.metadata.id, "controller-0"))
    cloud.running.worker.enqueue(cluster.metadata.id)
    await until(lambda: "controller-0" in pods(cloud, cluster))


async def test_what_an_administrator_drained_stays_drained(cloud):
    cluster = await cloud.create_cluster(count=2)
    address = cloud.world.addresses[Reference("Pod", cluster.metadata.id, "controller-0")]
    await cloud.slurm.connect(address, b"").set_node_state("worker-0", "DRAIN", "bad fan")
    for worker in ("worker-0", "worker-1"):
        cloud.engine.kill(Reference("Pod", cluster.metadata.id, worker))
    records = cloud.slurm.records[cluster.metadata.id]
    await until(lambda: {("DOWN", "worker-0"), ("DOWN", "worker-1")} <= set(cloud.slurm.calls))
    await until(lambda: "IDLE" in records["worker-1"].states)
    assert "DRAIN" in records["worker-0"].states
    assert records["worker-0"].reason == "bad fan"
    assert ("RESUME", "worker-0") not in cloud.slurm.calls


async def test_a_node_that_slurm_drained_for_a_job_it_already_ran_is_resumed(cloud):
    cluster = await cloud.create_cluster(count=2)
    address = cloud.world.addresses[Reference("Pod", cluster.metadata.id, "controller-0")]
    slurm = cloud.slurm.connect(address, b"")
    await slurm.set_node_state("worker-0", "DRAIN", "Duplicate jobid")
    await slurm.set_node_state("worker-1", "DRAIN", "Duplicate jobid of a bad fan")
    cloud.running.worker.enqueue(cluster.metadata.id)
    records = cloud.slurm.records[cluster.metadata.id]
    await until(lambda: "DRAIN" not in records["worker-0"].states)
    assert "DRAIN" in records["worker-1"].states


async def test_deleting_leaves_nothing(cloud):
    cluster = await cloud.create_cluster(count=2)
    request = contract.message("neocloud.slurm.v1.DeleteClusterRequest")(id=cluster.metadata.id)
    await cloud.call("ClusterService/Delete", request)
    await cloud.gone(cluster.metadata.id)
    assert cluster.metadata.id not in cloud.world.namespaces
    assert not pods(cloud, cluster)
    assert not cloud.world.volumes


async def test_an_unreachable_slurm_is_waited_for(cloud):
    cloud.slurm.is_reachable = False
    task = asyncio.create_task(cloud.create_cluster(count=1))
    await until(lambda: bool(cloud.world.pods))
    assert not task.done()
    cloud.slurm.is_reachable = True
    cluster = await task
    assert cluster.status.slurm_version == "24.11-fake"


async def test_a_cluster_of_a_stopped_cloud_is_stopped_until_it_is_back(tmp_path):
    world = FakeWorld()
    async with fake_cloud(tmp_path, world) as cloud:
        cluster = await cloud.create_cluster(count=1)
    settings = Settings(home=tmp_path)
    store = await open_store(settings.database, load_or_make_key(settings.key_file), SystemClock())
    assert await record_stop(store, [kind for service in SERVICES for kind in service.kinds]) == 1
    row = await store.read(lambda tx: tx.get(cluster.metadata.id))
    assert row and row.state == "STOPPED"
    await store.close()
    async with fake_cloud(tmp_path, world) as cloud:
        assert (await cloud.until(cluster.metadata.id, "READY")).metadata.id == cluster.metadata.id
        history = await cloud.running.store.read(lambda tx: tx.history(resource_id=cluster.metadata.id))
    assert [entry.state for entry in history][-2:] == ["STOPPED", "READY"]


def login_ports(cloud: FakeCloud, cluster) -> list[tuple[str | None, int | None]]:
    pod = cloud.world.pods[Reference("Pod", cluster.metadata.id, "login-0")]
    return [(port.host_ip, port.host_port) for port in pod.manifest.containers[0].ports or ()]


@pytest.mark.parametrize("is_missing", [False, True], ids=["taken", "missing"])
async def test_the_login_node_goes_without_an_address_that_it_cannot_have(tmp_path, monkeypatch, is_missing):
    """The operator adds an address on which another program has the port, or that the host lacks."""
    added = "203.0.113.1" if is_missing else "127.0.0.2"
    world = FakeWorld()
    async with fake_cloud(tmp_path, world) as cloud:
        cluster = await cloud.create_cluster(count=1)
    port = cluster.status.login.port
    monkeypatch.setattr(Settings, "login_addresses", property(lambda self: ("127.0.0.1", added)))
    monkeypatch.setattr(login_port, "FAILURES_BEFORE_CLOSING", 1)
    faults = Faults(taken_addresses={added})
    with socket.socket() as other:
        if not is_missing:
            other.bind((added, port))
            other.listen()
        for _ in range(2):  # the second time, the server finds the login node without the address
            async with fake_cloud(tmp_path, world, faults) as cloud:
                found = await cloud.when(
                    cluster.metadata.id,
                    lambda message: "LoginAddresses" in [each.type for each in message.status.conditions],
                    "READY",
                )
                (condition,) = [each for each in found.status.conditions if each.type == "LoginAddresses"]
                assert condition.status == "False" and added in condition.message
                assert is_missing or str(port) in condition.message
                assert login_ports(cloud, cluster) == [("127.0.0.1", port)]
    cloud.engine.lose(Reference("Pod", cluster.metadata.id, "login-0"))
    async with fake_cloud(tmp_path, world) as cloud:
        if not is_missing:  # it is free now, and the login node starts anyway
            await cloud.when(
                cluster.metadata.id,
                lambda message: len(message.status.conditions) == 2 and not message.status.reconciling,
            )
            assert login_ports(cloud, cluster) == [("127.0.0.1", port), (added, port)]


async def test_loopback_is_never_closed_though_the_monitor_before_holds_it(cluster_context: Any):
    """The login node before went without an address that is free again, so only loopback seems taken."""
    closed = ClosedAddresses()
    with socket.socket() as monitor:
        monitor.bind(("127.0.0.1", 0))
        monitor.listen()
        port = monitor.getsockname()[1]
        addresses = ("127.0.0.1", "127.0.0.2")
        for _ in range(3 * login_port.FAILURES_BEFORE_CLOSING):
            assert not await closed.note_failure(cluster_context, addresses, port, [])
    assert cluster_context.held == {}
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))
        other.listen()
        found = [await closed.note_failure(cluster_context, addresses, port, []) for _ in range(2)]
    assert (found, list(cluster_context.held)) == ([False, True], ["127.0.0.2"])


@pytest.fixture
def cluster_context() -> Any:
    """A context of a cluster with reservations in `held`."""
    held: dict[str, str] = {}

    async def reserve(space: str, values: list[str]) -> None:
        held.update(dict.fromkeys(values, "cluster"))

    async def release(space: str, value: str) -> None:
        del held[value]

    async def reservations(space: str) -> dict[str, str]:
        return dict(held)

    calls = {"reserve": reserve, "release": release, "reservations": reservations}
    return SimpleNamespace(resource=SimpleNamespace(id="cluster"), held=held, **calls)


@pytest.mark.parametrize("is_running", [False, True])
async def test_an_address_that_the_operator_gave_up_is_not_missed(cluster_context: Any, is_running: bool):
    """After `neo up --listen` with another address, no condition names the one that the host lacks."""
    cluster_context.held.update({"203.0.113.1,203.0.113.2": "cluster", "203.0.113.3": "other"})
    wanted = ("127.0.0.1", "203.0.113.2")
    left = await ClosedAddresses().of(cluster_context, 2222, wanted, is_running=is_running)
    assert left == ["203.0.113.2"]
    assert cluster_context.held == {"203.0.113.2": "cluster", "203.0.113.3": "other"}


def test_a_port_is_free_although_the_host_lacks_one_of_the_addresses():
    ports = LoginPorts.of(Settings(login_ports=(20000, 60000)))
    assert free_port(ports, ("203.0.113.1",)) == next(iter(ports.all()))
