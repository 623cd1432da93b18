"""A cluster on a subnet of the project, beside a machine that shares a filesystem with its jobs.

SLURM-07, CMP-13, VPC-01, VPC-02, VPC-03.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud
from tests.e2e.cluster import Cluster
from tests.e2e.test_machines import COMPUTE, Machine

VPC, RANGE = "nebius.vpc.v1", "10.77.13.0/24"
MOUNT = "/mnt/data"
FILESYSTEMS = f"{COMPUTE}.FilesystemService"
READY = 2
REST_PORT, SSH_PORT = 6820, 22


@pytest.fixture(scope="module")
def filesystem(cloud: Cloud) -> Iterator[str]:
    metadata = {"parent_id": cloud.project_id, "name": "shared"}
    request = {"metadata": metadata, "spec": {"type": "NETWORK_SSD", "size_gibibytes": 1}}
    identifier = cloud.call(f"{FILESYSTEMS}/Create", request).resource_id
    yield identifier
    cloud.call(f"{FILESYSTEMS}/Delete", {"id": identifier})


@pytest.fixture(scope="module")
def subnet(cloud: Cloud) -> Iterator[str]:
    """A subnet in a network of its own, with a range that its user chose."""

    def create(noun: str, spec: Mapping[str, Any]) -> str:
        request = {"metadata": {"parent_id": cloud.project_id, "name": "team"}, "spec": spec}
        made.append((noun, cloud.call(f"{VPC}.{noun}Service/Create", request).resource_id))
        return made[-1][1]

    made: list[tuple[str, str]] = []
    (default, *_) = cloud.call(f"{VPC}.NetworkService/List", {"parent_id": cloud.project_id}).items
    public = [{"id": pool.id} for pool in default.spec.ipv4_public_pools.pools]
    pool = create("Pool", {"version": "IPV4", "visibility": "PRIVATE", "cidrs": [{"cidr": RANGE}]})
    pools = {"ipv4_private_pools": {"pools": [{"id": pool}]}, "ipv4_public_pools": {"pools": public}}
    yield create("Subnet", {"network_id": create("Network", pools)})
    for noun, identifier in reversed(made):
        cloud.neo("vpc", noun.lower(), "delete", identifier, "--yes")


@pytest.fixture(scope="module")
def net(cloud: Cloud, filesystem: str, subnet: str) -> Iterator[Cluster]:
    """A cluster with one worker on the subnet. Tests leave it as they found it."""
    net = Cluster.create(
        *(cloud, "net", "--workers", "1", "--preset", "1vcpu-1gb", "--subnet", subnet),
        *("--filesystem", f"{filesystem}:{MOUNT}"),
    )
    cluster_id = net.id
    yield net
    cloud.neo("slurm", "cluster", "delete", "net", "--yes")
    assert cluster_id not in cloud.podman("ps", "--all", "--format={{.Names}}")
    assert not allocations(cloud, "net-")


@pytest.fixture(scope="module")
def machine(net: Cluster, filesystem: str, subnet: str) -> Iterator[Machine]:
    """A machine beside the cluster's nodes."""
    attached = {
        "attach_mode": "READ_WRITE",
        "mount_tag": "shared",
        "existing_filesystem": {"id": filesystem},
    }
    interface = {"name": "eth0", "subnet_id": subnet, "ip_address": {}, "public_ip_address": {}}
    machine = Machine.create(net.cloud, "beside", filesystems=[attached], network_interfaces=[interface])
    yield machine
    machine.delete()


def allocations(cloud: Cloud, start: str) -> list[str]:
    found = cloud.call("nebius.vpc.v1.AllocationService/List", {"parent_id": cloud.project_id}).items
    return [item.metadata.name for item in found if item.metadata.name.startswith(start)]


def test_nodes_have_addresses_of_the_subnet_and_jobs_run_over_them(net: Cluster) -> None:
    assert net.state == "READY"
    assert sorted(allocations(net.cloud, "net-")) == [
        f"net-{pod}" for pod in ("accounting-0", "controller-0", "login-0", "worker-0")
    ]
    (node,) = net.record["status"]["nodes"]
    said = net.run_job("hostname; hostname --ip-address; getent hosts controller-0 | cut -d' ' -f1").split()
    assert said[:2] == ["worker-0", node["address"]]
    assert said[2] == net.in_pod("controller-0", "hostname", "--ip-address").strip()


def test_a_job_and_a_login_shell_write_to_the_filesystem_and_not_to_the_shared_root(net: Cluster) -> None:
    """The daemon of the node opens the output file, before the job sees the shared root as "/"."""
    job = net.sbatch("pwd; hostname > written", f"--chdir={MOUNT}", f"--output={MOUNT}/out")
    assert net.wait_for_job(job) == "COMPLETED"
    assert net.ssh(f"cat {MOUNT}/out {MOUNT}/written").split() == [MOUNT, "worker-0"]
    # The shared root itself, without what the login node lays over it.
    assert net.in_pod("controller-0", "ls", f"/jail{MOUNT}") == ""
    net.ssh(f"rm {MOUNT}/out {MOUNT}/written")


def test_a_file_of_a_job_is_the_file_of_a_machine(net: Cluster, machine: Machine) -> None:
    net.run_job(f"seq 1 100000 > {MOUNT}/from-job")
    machine.run("mkdir -p /data && mount -t virtiofs shared /data")
    checksum = machine.run("md5sum < /data/from-job")
    assert checksum == net.ssh(f"md5sum < {MOUNT}/from-job")
    machine.run("echo from machine >> /data/from-job && sync")
    assert net.run_job(f"tail -n 1 {MOUNT}/from-job && rm {MOUNT}/from-job") == "from machine"
    assert machine.run("ls /data") == ""


def test_a_full_filesystem_is_full_for_those_who_use_it_and_for_nobody_else(
    net: Cluster, machine: Machine
) -> None:
    """It has 1 GiB; the shared root has a size of its own, and the host has space."""
    fill = net.try_ssh(f"head -c 1100M /dev/zero > {MOUNT}/filler")
    assert fill.returncode and "No space left on device" in fill.stderr
    assert int(net.ssh(f"stat --format=%s {MOUNT}/filler")) > 900 * 2**20
    mounted = "mkdir -p /data && { grep -q ' /data ' /proc/mounts || mount -t virtiofs shared /data; }"
    write = "head -c 9000000 /dev/zero > /data/one && sync && echo written || echo refused; rm -f /data/one"
    assert machine.run(f"{mounted} && {{ {write}; }} 2>/dev/null") == "refused"
    net.ssh("head -c 50M /dev/zero > /root/elsewhere && rm /root/elsewhere")
    net.ssh(f"rm {MOUNT}/filler")
    assert net.run_job(f"echo fits > {MOUNT}/one; cat {MOUNT}/one; rm {MOUNT}/one") == "fits"
    assert "filesystem size" in net.cloud.neo("status").stdout.partition("Not enforced")[0]


def test_a_filesystem_in_use_is_not_deleted(net: Cluster, filesystem: str) -> None:
    said = net.cloud.neo("compute", "filesystem", "delete", filesystem, "--yes", code=None)
    assert said.returncode != 0 and net.id in said.stderr, said
    assert net.cloud.call(f"{FILESYSTEMS}/Get", {"id": filesystem}).status.state == READY


def test_a_machine_knows_the_nodes_by_name_and_gets_where_the_security_group_lets_it(
    net: Cluster, machine: Machine
) -> None:
    name = "worker-0.team.internal"
    (node,) = net.record["status"]["nodes"]
    assert node["address"] in machine.run(f"nslookup {name}")
    login = "login-0.team.internal"
    assert machine.run(f"nc -w 5 {login} {SSH_PORT} < /dev/null | head -c 7") == "SSH-2.0"
    controller = "controller-0.team.internal"
    knock = f"nc -w 3 {controller} {REST_PORT} < /dev/null > /dev/null 2>&1; echo $?"
    assert machine.run(knock) != "0"
    # It does answer those whom the group lets in.
    wait_until(lambda: net.try_ssh(f"bash -c '</dev/tcp/controller-0/{REST_PORT}'").returncode == 0, "REST")
