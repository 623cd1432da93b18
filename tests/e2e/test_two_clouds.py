"""Two clouds on one host, each with a cluster on its default subnet: both work, in own ranges (VPC-01)."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud
from tests.e2e.cluster import Cluster


@pytest.fixture(scope="module")
def clusters(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    """Two clouds that start at the same time, with a cluster of one worker each."""
    clouds = [Cloud.prepare(tmp_path_factory.mktemp(name), images) for name in ("left", "right")]
    with ThreadPoolExecutor() as threads:
        try:
            list(threads.map(Cloud.up, clouds))
            yield list(threads.map(create_cluster, clouds))
        finally:
            for cloud in clouds:
                cloud.neo("destroy", "--yes")


def create_cluster(cloud: Cloud) -> Cluster:
    subnet = default_subnet(cloud).metadata.id
    return Cluster.create(*(cloud, "net", "--workers", "1", "--preset", "1vcpu-1gb"), *("--subnet", subnet))


def default_subnet(cloud: Cloud) -> Any:
    (subnet,) = cloud.call("nebius.vpc.v1.SubnetService/List", {"parent_id": cloud.project_id}).items
    return subnet


def ranges(cloud: Cloud) -> list[IPv4Network]:
    status = default_subnet(cloud).status
    return [IPv4Network(each) for each in (*status.ipv4_private_cidrs, *status.ipv4_public_cidrs)]


def address_of_worker(cluster: Cluster) -> str:
    (node,) = cluster.record["status"]["nodes"]
    return node["address"]


def test_clouds_that_start_together_have_ranges_of_their_own(clusters: list[Cluster]) -> None:
    left, right = (ranges(cluster.cloud) for cluster in clusters)
    assert not any(one.overlaps(other) for one in left for other in right)


def test_both_run_jobs_on_their_default_subnets(clusters: list[Cluster]) -> None:
    for cluster in clusters:
        name, address = cluster.run_job("hostname; hostname --ip-address").split()
        assert (name, address) == ("worker-0", address_of_worker(cluster))
        assert IPv4Address(address) in ranges(cluster.cloud)[0]


def test_neither_reaches_nodes_of_the_other(clusters: list[Cluster]) -> None:
    for cluster, other in (clusters, reversed(clusters)):
        own, foreign = (
            cluster.try_ssh(f"timeout 3 bash -c '</dev/tcp/{address}/{port}'").returncode
            for address, port in ((address_of_worker(cluster), 6818), (address_of_worker(other), 6818))
        )
        assert own == 0 and foreign != 0


def test_both_come_back_with_the_same_ranges(clusters: list[Cluster]) -> None:
    before = [ranges(cluster.cloud) for cluster in clusters]
    for cluster in clusters:
        cluster.cloud.neo("down")
    for cluster in reversed(clusters):
        cluster.cloud.up()
    assert [ranges(cluster.cloud) for cluster in clusters] == before
    for cluster in clusters:
        cluster.write_ssh_config()
        wait_until(cluster.try_node_states, "the login node answers", seconds=240)
        cluster.wait_until_idle(workers=1, seconds=240)
        assert cluster.run_job("hostname") == "worker-0"


def test_one_goes_on_when_the_other_is_destroyed(clusters: list[Cluster]) -> None:
    left, right = clusters
    left.cloud.neo("destroy", "--yes")
    assert not left.cloud.home.exists()
    assert right.run_job("hostname; getent hosts controller-0 > /dev/null") == "worker-0"
