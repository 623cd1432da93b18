"""The tree of switches of a cluster: jobs that ask for one leaf get nodes of one leaf, also new ones."""

from collections.abc import Iterator
from typing import Any

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import open_client
from tests.e2e.cluster import Cluster

PLACES = [
    {"node_set": "worker", "first": 0, "last": 0, "path": ["spine", "left"]},
    {"node_set": "worker", "first": 1, "last": 9, "path": ["spine", "right"]},
]


def change(cluster: Cluster, topology: dict[str, Any] | None) -> None:
    """Give the cluster another topology, or take it away."""
    spec = {key: value for key, value in cluster.record["spec"].items() if key != "topology"}
    if topology is not None:
        spec["topology"] = topology
    request = {"metadata": {"id": cluster.id}, "spec": spec}
    with open_client(cluster.cloud) as client:
        client.call("neocloud.slurm.v1.ClusterService/Update", request, reset_mask=["spec.topology"])


@pytest.fixture
def tree(bank: Cluster) -> Iterator[Cluster]:
    """The shared cluster with its two nodes in two leaves."""
    bank.wait_until_idle()
    change(bank, {"type": "TREE", "nodes": PLACES})
    wait_until(lambda: "left" in switches(bank), "Slurm has the tree")
    yield bank
    bank.cloud.neo("slurm", "cluster", "scale", bank.name, "--workers", "2")
    change(bank, None)
    wait_until(lambda: switches(bank) == {}, "Slurm has no tree any more")
    bank.wait_until_idle()
    assert bank.run_job("srun hostname | sort", "--nodes=2").split() == ["worker-0", "worker-1"]


def switches(cluster: Cluster) -> dict[str, str]:
    """The nodes below each switch, as Slurm lists them."""
    found: dict[str, str] = {}
    for line in cluster.try_ssh("scontrol show topology").stdout.splitlines():
        fields = dict(field.split("=", 1) for field in line.split() if "=" in field)
        if "SwitchName" in fields:
            found[fields["SwitchName"]] = fields.get("Nodes", "")
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
