"""dstack's Nebius backend, unmodified: create, wait for an address, ssh, terminate (IAC-01, CMP-01, CMP-09).

It knows only the published domain, so it goes through the redirector, and trusts the cloud's authority.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cloud import Cloud
from tests.e2e.ssh import ssh_until
from tests.long.conformance.trust import trusting

DRIVER = Path(__file__).with_name("drive_dstack.py")
FAMILY = "ubuntu24.04-cuda13.0"
"""dstack asks for it whatever the machine has; no image of ours has that name, since none has the driver."""


@pytest.fixture
def cuda_family(machine_cloud: Cloud) -> Iterator[None]:
    images = machine_cloud.home / "images" / "machine"
    disk = images / "debian13" / "disk.qcow2"
    machine_cloud.neo("image", "import", str(disk), "--name", FAMILY, "--title", "Debian 13 for dstack")
    yield
    shutil.rmtree(images / FAMILY)  # clouds of other tests have the folder, too


@pytest.mark.usefixtures("cuda_family")
def test_dstack_creates_reaches_and_terminates_a_machine(
    machine_cloud: Cloud, client_program, ssh_key: Path
) -> None:
    python = client_program("dstack", "python")
    words = [machine_cloud.home / "credentials.json", machine_cloud.project_id, "eu-north1"]
    command = trusting(
        machine_cloud, python, DRIVER, *words, "cpu-local", "1vcpu-4gb", ssh_key.with_suffix(".pub")
    )
    proxy = {"grpc_proxy": f"http://{machine_cloud.server['redirector']}", "no_grpc_proxy": ""}
    with subprocess.Popen(
        command,
        env={**machine_cloud.environment, **proxy},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdin and driver.stdout
        created, address = (json.loads(driver.stdout.readline()) for _ in range(2))
        assert created["instance_id"].startswith("computeinstance-")
        output = ssh_until(ssh_key, "ubuntu", address["hostname"], "cat /etc/hostname && ip -4 address")
        assert address["internal_ip"] in output
        driver.stdin.write("\n")
        driver.stdin.flush()
        assert json.loads(driver.stdout.readline())["step"] == "terminated"
    assert driver.returncode == 0
    project = {"parent_id": machine_cloud.project_id}
    for noun in ("Instance", "Disk"):
        left = machine_cloud.call(f"nebius.compute.v1.{noun}Service/List", project).items
        assert not [item.metadata.name for item in left if "dstack" in item.metadata.name]
