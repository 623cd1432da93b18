"""Two controllers of a cluster: what is rendered, who is in control, and what stands still is replaced."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.engines.base import ExecResult, Reference
from neocloud.services.slurm.reconcile.controllers import SAY_IN_CONTROL
from neocloud.services.slurm.render import configuration_version, pods
from neocloud.services.slurm.render.configuration import slurm_conf, volume_claims
from neocloud.testing.waiting import until
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud
from tests.fast.services.slurm.test_render import VIEW, pod

PAIR = replace(VIEW, controller_count=2)
UpdateClusterRequest = contract.message("neocloud.slurm.v1.UpdateClusterRequest")


def test_slurm_knows_both_and_how_long_to_wait_for_the_first():
    lines = slurm_conf(PAIR).splitlines()
    at = lines.index("SlurmctldHost=controller-0")
    assert lines[at : at + 3] == [
        "SlurmctldHost=controller-0",
        "SlurmctldHost=controller-1",
        "SlurmctldTimeout=12",
    ]
    assert configuration_version(PAIR) != configuration_version(VIEW)
    assert "SlurmctldTimeout" not in slurm_conf(VIEW)


def test_both_share_the_volume_with_the_state_and_are_guarded():
    claim = next(each for each in volume_claims(PAIR) if each.name == "controller-state")
    assert claim.access_modes == ("ReadWriteMany",)
    for name in ("controller-0", "controller-1"):
        spec = pod(name, PAIR)["spec"]
        claims = [each.get("persistentVolumeClaim", {}).get("claimName") for each in spec["volumes"]]
        assert "controller-state" in claims
        slurmctld = next(each for each in spec["containers"] if each["name"] == "controller")
        assert slurmctld["env"] == [{"name": "GUARDED", "value": "1"}]


def test_nodes_are_the_same_with_one_controller_and_with_two():
    """So a change from one to two restarts no worker, and ends no session."""
    others = {each.name: each.fingerprint for each in pods(VIEW) if not each.name.startswith("controller")}
    assert {each.name: each.fingerprint for each in pods(PAIR)}.items() >= others.items()


class Heartbeat:
    """Answers what controllers are asked, as long as they run."""

    def __init__(self) -> None:
        self.answer: bytes | None = b"0 1\n"

    def __call__(self, pod: Reference, container: str, command: Any, stdin: bytes) -> ExecResult | None:
        if tuple(command) != SAY_IN_CONTROL:
            return None
        assert pod.name.startswith("controller-")
        return ExecResult(0 if self.answer else 1, self.answer or b"", b"")


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path) as running:
        running.engine.responder = Heartbeat()
        yield running


async def change(cloud: FakeCloud, cluster: Any, count: int) -> None:
    request = UpdateClusterRequest(metadata=cluster.metadata, spec=cluster.spec)
    request.metadata.resource_version = 0
    request.spec.controller.count = count
    await cloud.call("ClusterService/Update", request)


def names(cloud: FakeCloud, cluster: Any) -> set[str]:
    return {each.reference.name for each in cloud.world.pods_of(cluster.metadata.id)}


def in_control(cluster: Any) -> list[str]:
    return [row.name for row in cluster.status.controllers if row.in_control]


async def pair(cloud: FakeCloud) -> Any:
    cluster = await cloud.create_cluster(count=1)
    assert not cluster.status.controllers, "of one, nothing is said"
    await change(cloud, cluster, 2)
    return await cloud.when(
        cluster.metadata.id, lambda seen: [row.ready for row in seen.status.controllers] == [True, True]
    )


def condition(cluster: Any) -> Any:
    return next(each for each in cluster.status.conditions if each.type == "ControllersAvailable")


async def test_a_second_controller_comes_and_goes_and_the_configuration_is_loaded(cloud):
    cluster = await pair(cloud)
    assert in_control(cluster) == ["controller-0"]
    assert condition(cluster).status == "True"
    workers = cloud.world.pods[Reference("Pod", cluster.metadata.id, "worker-0")].containers[0].started_at
    assert ("reconfigure",) in cloud.slurm.calls
    cloud.slurm.calls.clear()
    await change(cloud, cluster, 1)
    await until(lambda: "controller-1" not in names(cloud, cluster))
    cluster = await cloud.when(cluster.metadata.id, lambda seen: not seen.status.controllers)
    await until(lambda: ("reconfigure",) in cloud.slurm.calls)
    after = cloud.world.pods[Reference("Pod", cluster.metadata.id, "worker-0")].containers[0].started_at
    assert after == workers


async def test_the_status_says_who_is_in_control_and_nobody_while_the_heartbeat_is_old(cloud):
    cluster = await pair(cloud)
    for answer, expected in ((b"1 2\n", ["controller-1"]), (b"1 21\n", []), (b"0 0\n", ["controller-0"])):
        cloud.engine.responder.answer = answer
        cloud.running.worker.enqueue(cluster.metadata.id)
        seen = await cloud.when(cluster.metadata.id, lambda seen, is_so=expected: in_control(seen) == is_so)
        assert condition(seen).status == str(bool(expected))


@pytest.mark.parametrize("answer", [b"2 1\n", b"1\n", b"0 0 0\n", b"", b"controller-0 1\n"])
async def test_what_is_no_answer_puts_nobody_in_control(cloud, answer):
    cluster = await pair(cloud)
    cloud.engine.responder.answer = answer
    cloud.running.worker.enqueue(cluster.metadata.id)
    seen = await cloud.when(cluster.metadata.id, lambda seen: not in_control(seen))
    assert {"controller-0", "controller-1"} <= names(cloud, seen)


async def test_a_first_controller_that_stands_still_with_an_open_port_is_replaced(cloud):
    cluster = await pair(cloud)
    reference = Reference("Pod", cluster.metadata.id, "controller-0")
    before = cloud.world.pods[reference].containers[0].started_at
    cloud.engine.responder.answer = b"1 2\n"
    cloud.running.worker.enqueue(cluster.metadata.id)
    await cloud.when(cluster.metadata.id, lambda seen: in_control(seen) == ["controller-1"])
    cloud.running.worker.enqueue(cluster.metadata.id)
    await until(
        lambda: (
            reference in cloud.world.pods and cloud.world.pods[reference].containers[0].started_at > before
        )
    )


async def test_one_of_two_controllers_is_enough(cloud):
    """Slurm is asked through the one that answers; a node set grows meanwhile."""
    cluster = await pair(cloud)
    address = cloud.world.addresses[Reference("Pod", cluster.metadata.id, "controller-0")]
    cloud.slurm.silent.add(address)
    request = UpdateClusterRequest(metadata=cluster.metadata, spec=cluster.spec)
    request.metadata.resource_version = 0
    request.spec.node_sets[0].count = 2
    await cloud.call("ClusterService/Update", request)
    await cloud.when(
        cluster.metadata.id,
        lambda seen: [row.slurm_state for row in seen.status.nodes] == ["IDLE", "IDLE"],
    )


@pytest.mark.parametrize("count", [-1, 3])
async def test_there_are_at_most_two(cloud, count):
    cluster = await cloud.create_cluster(count=1)
    request = UpdateClusterRequest(metadata=cluster.metadata, spec=cluster.spec)
    request.metadata.resource_version = 0
    request.spec.controller.count = count
    error = await cloud.refusal("ClusterService/Update", request)
    assert error.code is contract.Code.INVALID_ARGUMENT
