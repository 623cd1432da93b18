"""Two clouds on one host, each with a cluster on its default subnet: both work, in own ranges (VPC-01).

The right one listens for another machine, too.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud, run
from tests.e2e.cluster import Cluster, user_key
from tests.e2e.reader import LEAVES_SHELLS, follow
from tests.real.guides.session import Reader
from tests.two_machines import Machine, laptop

EMAIL = "alice@bank.example"
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3]))"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Machine]]:
    """An address of this machine that a laptop reaches, and the laptop."""
    with laptop(tmp_path_factory.mktemp("elsewhere")) as found:
        yield found


@pytest.fixture(scope="module")
def clusters(
    images: Path, tmp_path_factory: pytest.TempPathFactory, elsewhere: tuple[str, Machine]
) -> Iterator[list[Cluster]]:
    """Two clouds that start at the same time, with a cluster of one worker each."""
    clouds = [Cloud.prepare(tmp_path_factory.mktemp(name), images) for name in ("left", "right")]
    with ThreadPoolExecutor() as threads:
        try:
            left, right = clouds
            starts = threads.submit(left.up), threads.submit(right.up, "--listen", elsewhere[0])
            for start in starts:
                start.result()
            yield list(threads.map(create_cluster, clouds))
        finally:
            for cloud in clouds:
                cloud.neo("destroy", "--yes")


def create_cluster(cloud: Cloud) -> Cluster:
    subnet = default_subnet(cloud).metadata.id
    return Cluster.create(*(cloud, "lab", "--workers", "1", "--preset", "1vcpu-1gb"), *("--subnet", subnet))


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


def test_ssh_and_scp_work_from_a_laptop(
    clusters: list[Cluster], elsewhere: tuple[str, Machine], tmp_path: Path
) -> None:
    right, (address, machine) = clusters[1], elsewhere
    status = right.cloud.neo_json("status")
    api = next(each["port"] for each in status["open_ports"] if each["tls"] and each["protocol"] == "JSON")
    password = right.cloud.neo("user", "create", EMAIL, "--group", "editors").stdout.split()[-1]
    sign_in = ("login", f"https://{address}:{api}", EMAIL, "--password-stdin")
    signed_in = machine.neo(*sign_in, "--fingerprint", status["fingerprint"], text=f"{password}\n")
    assert signed_in.returncode == 0, signed_in.stderr

    key = str(user_key(right.cloud))
    command = "hostname; sinfo --noheader --partition=main --format=%n"
    said = machine.neo("ssh", "lab", "--identity", key, "--", command)
    assert said.stdout.split() == ["login-0", "worker-0"], said.stderr
    config, sent, back = (tmp_path / name for name in ("lab.ssh", "sent", "back"))
    config.write_text(machine.neo("slurm", "cluster", "ssh-config", "lab", "--identity", key).stdout)
    sent.write_text("from the laptop")
    for source, target in ((str(sent), "lab:copied"), ("lab:copied", str(back))):
        copied = machine.run(["scp", "-q", "-F", str(config), source, target])
        assert copied.returncode == 0, copied.stderr
    assert back.read_text() == "from the laptop"

    page = "docs/guides/a-teams-cloud.md"
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text("print('trained')\n")
    as_written = ("cat > first", "neo slurm job", "neo ssh", "neo slurm cluster ssh-config", "scp -F")
    read = follow(
        right.cloud, page, tmp_path, runs=as_written, reader=Reader(types=LEAVES_SHELLS), laptop=machine
    )
    assert "worker-0" in read and "logout" in read
    assert clusters[1].ssh("python3 train.py") == "trained"


def test_a_laptop_gets_no_further_than_the_key_and_the_address_say(
    clusters: list[Cluster], elsewhere: tuple[str, Machine], tmp_path: Path
) -> None:
    """SEC-01, VPC-03: a key of nobody; the cloud that listens on loopback; pods and other ports."""
    (left, right), (address, machine) = clusters, elsewhere
    closed, opened = (str(cluster.record["status"]["login"]["port"]) for cluster in clusters)
    assert machine.python(CONNECT, address, opened, "60").returncode == 0
    for host, port in ((address, closed), (address_of_worker(right), "6818")):
        assert machine.python(CONNECT, host, port, "2").returncode != 0, f"{host}:{port}"
    assert left.try_ssh(f"timeout 2 bash -c '</dev/tcp/{address}/{opened}'").returncode != 0

    outsider = tmp_path / "outsider"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", outsider])
    options = ("StrictHostKeyChecking=no", f"UserKnownHostsFile={tmp_path / 'hosts'}", "IdentitiesOnly=yes")
    words = ["ssh", "-p", opened, "-i", str(outsider), *(part for each in options for part in ("-o", each))]
    refused = machine.run([*words, "-o", "BatchMode=yes", f"root@{address}", "true"])
    assert refused.returncode == 255 and "Permission denied (publickey)" in refused.stderr, refused


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
