"""Two clusters side by side, and what a job in one of them can reach."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cloud import Cloud, run
from tests.e2e.cluster import Cluster

PORTS = (22, 3306, 6817, 6818, 6819, 6820)

KNOCK = """
import json, socket, subprocess, sys
from concurrent.futures import ThreadPoolExecutor

def knock(target):
    address, port = target
    if port is None:
        return subprocess.run(["ping", "-c1", "-W5", address], capture_output=True).returncode == 0
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError:
        return False
    return True

targets = [tuple(target) for target in json.loads(sys.argv[1])]
with ThreadPoolExecutor(32) as pool:
    print(json.dumps([target for target, open_ in zip(targets, pool.map(knock, targets)) if open_]))
"""


@pytest.fixture(scope="module")
def other(bank: Cluster) -> Iterator[Cluster]:
    """A second cluster beside the first, with one small worker."""
    other = Cluster.create(bank.cloud, "other", "--workers", "1", "--preset", "1vcpu-1gb")
    cluster_id = other.id
    yield other
    bank.cloud.neo("slurm", "cluster", "delete", "other", "--yes")
    assert containers_of(bank.cloud, cluster_id) == []


def containers_of(cloud: Cloud, cluster_id: str) -> list[str]:
    names = cloud.podman("ps", "--all", "--format={{.Names}}").split()
    return [name for name in names if name.startswith(cluster_id)]


@pytest.fixture(scope="module")
def knocks(bank: Cluster) -> None:
    bank.ssh("cat > /home/shared/knock.py", stdin=KNOCK)


def reachable(bank: Cluster, targets: list[tuple[str, int | None]]) -> list[list]:
    """Return the targets (address, port; None for ICMP) that a job of `bank` as root can reach."""
    return json.loads(bank.run_job(f"python3 knock.py '{json.dumps(targets)}'"))


def addresses(cluster: Cluster) -> dict[str, str]:
    """Every pod of a cluster with its address."""
    lines = cluster.ssh("grep -v -e localhost -e _gateway -e neocloud.internal /etc/hosts").splitlines()
    return {name: line.split()[0] for line in lines for name in line.split()[1:2]}


def test_both_clusters_run_jobs_under_the_same_node_names(bank: Cluster, other: Cluster) -> None:
    bank.wait_until_idle()
    other.wait_until_idle(1)
    bank.ssh("echo of bank > /home/shared/whose")
    assert other.run_job("hostname; cat /home/shared/whose 2>&1 || true").startswith("worker-0\ncat:")
    assert set(addresses(bank).values()).isdisjoint(addresses(other).values())


def test_a_job_reaches_its_own_cluster_but_no_node_of_another(
    bank: Cluster, other: Cluster, knocks: None
) -> None:
    """SEC-01, VPC-03: TCP on every port of Slurm, and ICMP."""
    own, others = addresses(bank), addresses(other)
    assert {"controller-0", "accounting-0", "login-0", "worker-0"} <= set(others)
    reached = reachable(bank, [(own["controller-0"], 6817), (own["worker-1"], 6818), (own["worker-1"], None)])
    assert len(reached) == 3, f"the probe itself does not work: {reached}"
    targets: list[tuple[str, int | None]] = [
        (address, port) for address in others.values() for port in (*PORTS, None)
    ]
    assert reachable(bank, targets) == []


def test_a_job_reaches_no_service_of_this_machine(bank: Cluster, other: Cluster, knocks: None) -> None:
    """VPC-03: neither one that listens on all addresses nor the other cluster's ssh port."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        ours = [address for address in machine_addresses() if is_reached(address, port)]
        login = int(other.record["status"]["login"]["port"])
        api = int(bank.cloud.server["grpc"].rpartition(":")[2])
        targets: list[tuple[str, int | None]] = [
            (address, number) for address in ours for number in (port, login, api, None)
        ]
        assert len(ours) >= 2  # at the least the two clusters' bridges
        assert reachable(bank, targets) == []


def is_reached(address: str, port: int) -> bool:
    """Return whether this machine reaches its own address. False: a test that ended has taken it away."""
    try:
        socket.create_connection((address, port), timeout=60).close()
    except OSError:
        assert address not in machine_addresses()
        return False
    return True


def machine_addresses() -> list[str]:
    """IPv4 addresses of this machine that are not loopback's."""
    said = subprocess.run(["ip", "-json", "-4", "address"], capture_output=True, text=True, check=True)
    return [
        entry["local"]
        for link in json.loads(said.stdout)
        if link["ifname"] != "lo"
        for entry in link["addr_info"]
    ]


def test_a_login_node_is_reached_on_loopback_only(bank: Cluster, other: Cluster) -> None:
    """VPC-03: nobody on the network can knock at ssh."""
    port = int(bank.record["status"]["login"]["port"])
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    for address in machine_addresses():
        with pytest.raises(OSError):
            socket.create_connection((address, port), timeout=1)


def test_the_key_of_one_user_does_not_open_a_cluster_that_does_not_know_it(
    bank: Cluster, tmp_path: Path
) -> None:
    """SEC-01."""
    bank.write_ssh_config()
    outsider = tmp_path / "outsider"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", outsider])
    lines = bank.ssh_config.read_text().splitlines()
    config = tmp_path / "config"
    config.write_text("\n".join(line for line in lines if "IdentityFile" not in line))
    said = subprocess.run(
        ["ssh", "-F", config, "-i", outsider, "-o", "BatchMode=yes", "bank", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode != 0 and "Permission denied" in said.stderr
