"""topology.conf from the places of nodes: what is rendered, what is refused, when Slurm reads it again."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from neocloud.messages.neocloud.slurm.v1 import Topology

from neocloud.core import contract
from neocloud.services.slurm.render import PlaceView, configuration_version
from neocloud.services.slurm.render.configuration import configuration_files, slurm_conf
from neocloud.services.slurm.render.topology import topology_conf
from neocloud.services.slurm.rules import ClusterRules
from neocloud.testing.waiting import until
from tests.services.slurm.cloud import FakeCloud, fake_cloud
from tests.services.slurm.test_render import VIEW

RULES = ClusterRules()
TREE = replace(
    VIEW,
    node_sets=(replace(VIEW.node_sets[0], count=50), VIEW.node_sets[1]),
    topology=(
        PlaceView("worker", 0, 17, ("spine-1", "leaf-1")),
        PlaceView("worker", 18, 35, ("spine-1", "leaf-2")),
        PlaceView("worker", 40, 40, ("spine-2", "leaf-3")),
        PlaceView("gpu", 0, 1023, ("spine-2", "leaf-3")),
    ),
)


def test_switches_and_nodes_are_those_of_the_places():
    assert topology_conf(TREE) == (
        "SwitchName=leaf-1 Nodes=worker-[0-17]\n"
        "SwitchName=leaf-2 Nodes=worker-[18-35]\n"
        "SwitchName=leaf-3 Nodes=worker-40,gpu-[0-1023]\n"
        "SwitchName=unplaced Nodes=worker-[36-39],worker-[41-49]\n"
        "SwitchName=spine-1 Switches=leaf-1,leaf-2\n"
        "SwitchName=spine-2 Switches=leaf-3\n"
        "SwitchName=cluster Switches=spine-1,spine-2,unplaced\n"
    )
    assert "TopologyPlugin=topology/tree\n" in slurm_conf(TREE)


def test_a_tree_with_one_top_and_all_nodes_gets_no_switch_of_its_own():
    whole = tuple(PlaceView(each.name, 0, 1023, ("leaf",)) for each in VIEW.node_sets)
    conf = topology_conf(replace(VIEW, topology=whole))
    assert conf == "SwitchName=leaf Nodes=worker-[0-1023],gpu-[0-1023]\n"


@pytest.mark.parametrize(
    ("count", "unplaced"),
    [(36, ""), (38, "worker-[36-37]"), (41, "worker-[36-39]"), (0, ""), (37, "worker-36")],
)
def test_only_nodes_of_the_cluster_are_without_a_place(count, unplaced):
    view = replace(TREE, node_sets=(replace(VIEW.node_sets[0], count=count), VIEW.node_sets[1]))
    lines = [line for line in topology_conf(view).splitlines() if "=unplaced " in line]
    assert lines == ([f"SwitchName=unplaced Nodes={unplaced}"] if unplaced else [])


def test_without_a_topology_slurm_keeps_its_default():
    assert "topology.conf" not in configuration_files(VIEW)
    assert "Topology" not in slurm_conf(VIEW)


def test_the_version_changes_with_the_nodes_in_slurm_only_where_they_have_places():
    assert configuration_version(TREE, ["worker-0"]) != configuration_version(TREE, ["worker-0", "worker-1"])
    assert configuration_version(TREE, ["a", "b"]) == configuration_version(TREE, ["b", "a"])
    assert configuration_version(VIEW, ["worker-0"]) == configuration_version(VIEW)


def place(cluster: Any, *path: str, node_set: str = "worker", first: int = 0, last: int = 0) -> None:
    cluster.spec.topology.type = Topology.TREE
    cluster.spec.topology.nodes.add(node_set=node_set, first=first, last=last, path=path)


def refused(cluster: Any, world: Any) -> list[str]:
    return [violation.field for violation in RULES.violations(cluster, None, world)]


def test_a_tree_is_legal(cluster, world):
    place(cluster, "spine", "leaf-1")
    place(cluster, "spine", "leaf-2", first=1, last=5)
    place(cluster, "spine", "leaf-1", first=6, last=6)
    assert refused(cluster, world) == []


def test_a_node_set_that_is_not_there_is_refused(cluster, world):
    place(cluster, "leaf", node_set="gpu")
    assert refused(cluster, world) == ["spec.topology.nodes[0].node_set"]


def test_a_node_in_two_places_is_named(cluster, world):
    place(cluster, "leaf-1", last=5)
    place(cluster, "leaf-2", first=5, last=9)
    (violation,) = RULES.violations(cluster, None, world)
    assert violation.field == "spec.topology.nodes[1]" and "worker-5" in violation.message


def test_a_range_that_ends_before_it_begins_is_refused(cluster, world):
    place(cluster, "leaf", first=3, last=2)
    assert refused(cluster, world) == ["spec.topology.nodes[0].last"]


@pytest.mark.parametrize(
    "path",
    [
        ("other", "leaf-1"),  # below two
        ("leaf-1",),  # below one, and at the top
        ("leaf-1", "spine"),  # upside down
        ("spine",),  # nodes beside its switches
        ("spine", "leaf-1", "deeper"),  # switches below a leaf
        ("spine", "spine"),
        ("cluster", "leaf-2"),
        ("spine", "unplaced"),
    ],
)
def test_what_is_no_tree_is_refused(cluster, world, path):
    """slurmctld would end with it, and not start again."""
    place(cluster, "spine", "leaf-1")
    place(cluster, *path, first=1, last=1)
    assert "spec.topology.nodes[1].path" in refused(cluster, world)


def test_blocks_are_refused_with_what_to_do(cluster, world):
    place(cluster, "leaf")
    cluster.spec.topology.type = Topology.BLOCK
    (violation,) = RULES.violations(cluster, None, world)
    assert violation.field == "spec.topology.type" and "TREE" in violation.message


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path) as running:
        yield running


def update(cluster: Any) -> Any:
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
        metadata=cluster.metadata, spec=cluster.spec
    )
    request.metadata.resource_version = 0
    return request


@pytest.mark.parametrize(
    ("path", "type_"),
    [
        (["leaf Nodes=login-0"], 1),
        (["leaf\nSwitchName=x"], 1),
        (["a,b"], 1),
        (["leaf[0-9]"], 1),
        (["../../etc"], 1),
        ([""], 1),
        (["Leaf"], 1),
        (["l" * 31], 1),
        ([], 1),
        (["a", "b", "c", "d", "e"], 1),
        (["leaf"], 0),
        (["leaf"], 7),
    ],
)
async def test_names_that_would_be_more_than_a_name_in_the_file_are_refused(cloud, path, type_):
    cluster = await cloud.create_cluster(count=1)
    request = update(cluster)
    request.spec.topology.type = type_
    request.spec.topology.nodes.add(node_set="worker", first=0, last=0, path=path)
    error = await cloud.refusal("ClusterService/Update", request)
    assert error.code is contract.Code.INVALID_ARGUMENT


async def test_slurm_reads_its_configuration_again_when_a_new_node_has_registered(cloud):
    cluster = await cloud.create_cluster(count=1)
    request = update(cluster)
    place(request, "leaf-1")
    place(request, "leaf-2", first=1, last=1)
    await cloud.call("ClusterService/Update", request)
    await until(lambda: ("reconfigure",) in cloud.slurm.calls)
    cluster = await cloud.until(cluster.metadata.id, "READY")
    cloud.slurm.calls.clear()
    request.spec.node_sets[0].count = 2
    await cloud.call("ClusterService/Update", request)
    await until(lambda: ("reconfigure",) in cloud.slurm.calls)
    known = cloud.slurm.records[cluster.metadata.id]
    assert "worker-1" in known, "it had registered"
    cloud.slurm.calls.clear()
    cloud.running.worker.enqueue(cluster.metadata.id)
    seen = await cloud.when(cluster.metadata.id, lambda seen: not seen.status.reconciling)
    assert seen.status.configuration_version
    assert ("reconfigure",) not in cloud.slurm.calls
