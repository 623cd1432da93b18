"""Switches and blocks of a cluster: jobs get nodes of one leaf when they ask for it, of one block always."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import open_client
from tests.e2e.cluster import SHARED, Cluster

GO = f"{SHARED}/block-goes-on"
PLACES = [
    {"node_set": "worker", "first": 0, "last": 0, "path": ["spine", "left"]},
    {"node_set": "worker", "first": 1, "last": 9, "path": ["spine", "right"]},
]

BLOCKS = [{**place, "path": place["path"][-1:]} for place in PLACES]


def change(cluster: Cluster, topology: dict[str, Any] | None) -> None:
    """Give the cluster another topology, or take it away."""
    spec = {key: value for key, value in cluster.record["spec"].items() if key != "topology"}
    if topology is not None:
        spec["topology"] = topology
    request = {"metadata": {"id": cluster.id}, "spec": spec}
    with open_client(cluster.cloud) as client:
        client.call("neocloud.slurm.v1.ClusterService/Update", request, reset_mask=["spec.topology"])


@contextmanager
def connected(cluster: Cluster, topology: dict[str, Any]) -> Iterator[Cluster]:
    """The shared cluster with its two nodes apart."""
    cluster.wait_until_idle()
    change(cluster, topology)
    wait_until(lambda: "left" in switches(cluster), "Slurm has the topology")
    yield cluster
    cluster.cloud.neo("slurm", "cluster", "scale", cluster.name, "--workers", "2")
    change(cluster, None)
    wait_until(lambda: switches(cluster) == {}, "Slurm has no topology any more")
    cluster.wait_until_idle()
    assert cluster.run_job("srun hostname | sort", "--nodes=2").split() == ["worker-0", "worker-1"]


@pytest.fixture
def tree(bank: Cluster) -> Iterator[Cluster]:
    with connected(bank, {"type": "TREE", "nodes": PLACES}) as cluster:
        yield cluster


@pytest.fixture
def blocks(bank: Cluster) -> Iterator[Cluster]:
    """Neither block is whole: one has a node, and the other gets its second in the test."""
    with connected(bank, {"type": "BLOCK", "nodes": BLOCKS, "block_sizes": [2, 4]}) as cluster:
        yield cluster


def switches(cluster: Cluster) -> dict[str, str]:
    """The nodes below each switch, or in each block, as Slurm lists them."""
    found: dict[str, str] = {}
    for line in cluster.try_ssh("scontrol show topology").stdout.splitlines():
        fields = dict(field.split("=", 1) for field in line.split() if "=" in field)
        for name in {"SwitchName", "BlockName", "AggregatedBlock"} & set(fields):
            found[fields[name]] = fields.get("Nodes", "")
    return found


def test_a_job_that_asks_for_one_switch_gets_nodes_of_one_leaf(tree: Cluster) -> None:
    """SJOB-04: two nodes of one leaf, though the first two nodes are in two."""
    assert switches(tree)["left"] == "worker-0"
    apart = tree.sbatch("hostname", "--nodes=2", "--exclusive", "--switches=1@12:00:00")
    tree.cloud.neo("slurm", "cluster", "scale", tree.name, "--workers", "3")
    wait_until(lambda: switches(tree).get("spine") == "worker-[0-2]", "the new node has its place")
    assert tree.wait_for_job(apart) == "COMPLETED", "it waited for two nodes of one leaf"
    for _ in range(3):
        said = tree.run_job("srun hostname | sort", "--nodes=2", "--exclusive", "--switches=1")
        assert said.split() == ["worker-1", "worker-2"]
    said = tree.run_job("srun sh -c 'echo $SLURM_TOPOLOGY_ADDR' | sort", "--nodes=2", "--switches=1")
    assert said.split() == ["spine.right.worker-1", "spine.right.worker-2"]


@pytest.mark.long
def test_a_job_that_fits_into_one_block_gets_nodes_of_one_block(blocks: Cluster) -> None:
    """Though slurmctld knows fewer nodes than a block should have, and slurmd only its own."""
    pair = ("--nodes=2", "--exclusive")
    refused = blocks.try_ssh(f"cd {SHARED} && sbatch {' '.join(pair)} --wrap hostname")
    assert "Requested node configuration is not available" in refused.stderr, "no block has two nodes"
    blocks.kill("controller-0", "controller")
    blocks.cloud.neo("slurm", "cluster", "scale", blocks.name, "--workers", "3")
    both = "left,right"
    wait_until(lambda: switches(blocks).get(both, "").endswith(",worker-[0-2]"), "the new node has its place")

    blocks.ssh(f"rm -f {GO}")
    busy = blocks.sbatch(f"until [ -e {GO} ]; do sleep 0.2; done", "--nodelist=worker-1", "--exclusive")
    wait_until(lambda: blocks.job_state(busy) == "RUNNING", "one node of the block is busy")
    apart = blocks.sbatch("srun hostname | sort", *pair)
    spread = blocks.sbatch("srun hostname | sort", "--nodes=1", "--exclusive", "--wait")
    assert blocks.job_state(spread) == "COMPLETED", "others are free"
    assert blocks.job_state(apart) == "PENDING", "it waits, though two nodes of two blocks are free"
    blocks.ssh(f"touch {GO}")
    assert blocks.wait_for_job(apart) == "COMPLETED"
    assert blocks.output_of(apart).split() == ["worker-1", "worker-2"]

    said = blocks.run_job("srun sh -c 'echo $SLURM_TOPOLOGY_ADDR' | sort", "--nodes=3", "--exclusive")
    assert said.split() == ["left.worker-0", "right.worker-1", "right.worker-2"]
    names = {"worker-0", "worker-1", "worker-2"}
    assert blocks.node_states().keys() == names, "nodes that fill blocks are not shown"
    shown = blocks.ssh("scontrol --oneliner show partition main")
    assert "TotalNodes=3 " in shown
