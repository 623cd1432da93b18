"""topology.conf from the places of nodes: what is rendered, what is refused, when Slurm reads it again."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from neocloud.messages.neocloud.slurm.v1 import Topology

from neocloud.core import contract
from neocloud.services.slurm.render import ClusterView, PlaceView, configuration_version
from neocloud.services.slurm.render.configuration import configuration_files, slurm_conf
from neocloud.services.slurm.render.topology import absent_node_count, topology_conf
from neocloud.services.slurm.rules import ClusterRules
from neocloud.testing.waiting import until
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud
from tests.fast.services.slurm.test_render import VIEW

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


def blocks(*sizes: int, view: ClusterView = TREE, **ranges: tuple[int, int]) -> ClusterView:
    places = tuple(PlaceView("worker", *ends, (name.replace("_", "-"),)) for name, ends in ranges.items())
    return replace(view, topology=places, has_blocks=True, block_sizes=sizes)


def test_blocks_have_the_nodes_of_the_places_and_as_many_that_never_come():
    view = blocks(18, 36, rack_1=(0, 17), rack_2=(18, 35), unborn=(50, 1023))
    assert topology_conf(view) == (
        "BlockName=rack-1 Nodes=worker-[0-17],absent_rack-1-[0-17]\n"
        "BlockName=rack-2 Nodes=worker-[18-35],absent_rack-2-[0-17]\n"
        "BlockName=unborn Nodes=worker-[50-1023],absent_unborn-[0-17]\n"
        "BlockName=unplaced Nodes=worker-[36-49],gpu-0,absent_unplaced-[0-17]\n"
        "BlockSizes=18,36\n"
    )
    lines = slurm_conf(view).splitlines()
    assert "TopologyPlugin=topology/block" in lines
    assert [line for line in lines if line.startswith("NodeName=")] == [
        f"NodeName=absent_{name}-[0-17] State=FUTURE" for name in ("rack-1", "rack-2", "unborn", "unplaced")
    ]
    assert f"MaxNodeCount={1024 + 4 * 18}" in lines
    assert "PartitionName=main Nodes=worker,gpu Default=YES DefCpuPerGPU=8 DefMemPerGPU=32768" in lines


def test_a_node_set_with_the_name_of_the_partition_of_all_is_in_it_also_with_blocks():
    view = replace(VIEW, node_sets=(replace(VIEW.node_sets[0], name="main"),))
    conf = slurm_conf(replace(blocks(view=view), topology=(PlaceView("main", 0, 1, ("rack",)),)))
    assert "PartitionName=main Nodes=main Default=YES\n" in conf
    assert "NodeSet=main Feature=main\n" in conf


@pytest.mark.parametrize(
    ("ranges", "sizes"),
    [
        ({"a": (0, 3), "b": (4, 9), "c": (10, 49)}, "4,8,16"),  # three blocks, and the one of gpu-0
        ({"a": (0, 3), "b": (48, 1023)}, "2,4,8"),  # of the second there are two
        ({"a": (0, 3), "b": (50, 1023)}, "4,8,16"),  # of the second there is none yet
        ({"a": (50, 1023)}, "1,2"),
        ({f"b{each}": (each * 20 + 50, each * 20 + 69) for each in range(40)} | {"a": (0, 49)}, "24,48"),
    ],
)
def test_without_sizes_the_smallest_block_counts_and_every_multiple(ranges, sizes):
    (line,) = (each for each in topology_conf(blocks(**ranges)).splitlines() if "BlockSizes" in each)
    assert line.startswith(f"BlockSizes={sizes}")
    assert absent_node_count(blocks(**ranges)) <= 1024


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


@pytest.mark.parametrize(
    ("sizes", "field"),
    [
        ([], None),
        ([18], None),
        ([18, 36, 144], None),
        ([18, 54], "block_sizes[1]"),  # three times
        ([18, 40], "block_sizes[1]"),
        ([18, 9], "block_sizes[1]"),
        ([18, 36, 36], "block_sizes[2]"),
        ([512], "block_sizes"),  # two blocks, and that of the other nodes, are more than there may be
    ],
)
def test_block_sizes_are_those_that_slurm_takes(cluster, world, sizes, field):
    """slurmctld would end with others, and not start again."""
    place(cluster, "rack-1", last=17)
    place(cluster, "rack-2", first=18, last=35)
    cluster.spec.topology.type = Topology.BLOCK
    cluster.spec.topology.block_sizes.extend(sizes)
    assert refused(cluster, world) == ([f"spec.topology.{field}"] if field else [])


def test_a_block_has_no_switches_above_it_and_a_tree_no_block_sizes(cluster, world):
    place(cluster, "spine", "leaf")
    cluster.spec.topology.block_sizes.append(2)
    assert refused(cluster, world) == ["spec.topology.block_sizes"]
    cluster.spec.topology.type = Topology.BLOCK
    assert refused(cluster, world) == ["spec.topology.nodes[0].path"]


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
