"""Audit a cluster and a machine of ours by an outside judge: `cmax audit` of ClusterMAX, unmodified.

In a cluster it completes only where a partition has GPUs, so the workers have simulated ones: what it says
of GPUs, their driver and libraries is not judged here. docs/reference/clustermax-audit.md is its report, with
the reasons for what does not pass.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from neocloud.cli.scorecard.scorecard import Score, read_report
from tests import ROOT
from tests.clients import CLIENTS
from tests.e2e.cloud import Cloud, run
from tests.e2e.cluster import Cluster
from tests.e2e.simulated_gpus import simulated_gpus
from tests.e2e.ssh import OPTIONS

PATHS = "PYTHONPATH=/opt/clustermax"
UNPACK = "mkdir -p /opt/clustermax && tar -C /opt/clustermax -xz"
ALLOCATION = "salloc --quiet --nodes=2 --ntasks-per-node=1 --gres=gpu:1 --time=15"
OF_CLUSTER, OF_MACHINE = (
    (ROOT / "docs" / "reference" / "clustermax-audit.md").read_text().split("\n## A virtual machine\n")
)
VERDICTS = """
import json, pathlib, sys
from cmax import audit_report, security

folder = max((pathlib.Path.home() / ".clustermax" / "audit").iterdir())
values = json.loads((folder / "audit.values.json").read_text())
target = {"harness": sys.argv[1], "environment": sys.argv[2]}
checks = audit_report.evaluate(values, security.find_runtime_root(), **target)
print(json.dumps({check.key: [check.status, str(check.observed), check.assessment] for check in checks}))
"""

MUST_PASS = {
    "access.slurmCommandsOk",
    "access.sshToComputeNodes",
    "access.sudoAvailable",
    "access.userManagement",
    "bmc-ipmi",
    "containers.pyxisRuntimeWorks",
    "containers.workerCheckOk",
    "networking.ncclAutoConfig",
    "networking.topologyConfigured",
    "slurm.accounting.sacctAvailable",
    "software.cudaVisibleDevicesStatus",
}
"""Checks that a cluster without a fabric and a driver of GPUs can pass, whatever its host."""
MACHINE_MUST_PASS = {
    "access.sudoAvailable",
    "access.userManagement",
    "bmc-ipmi",
    "containers.workerCheckOk",
    "security.guestKernel.newerInstalled",
    "security.januscape.status",
    "software.perf.installed",
    "software.perf.kptrRestrict",
    "software.perf.perfEventParanoid",
}
"""Checks that a machine without GPU and fabric can pass."""
WITH_TORCH_FOR_GPUS = {"software.nccl.installed"}
"""Checks that also pass where the shared root has PyTorch's build for GPUs, which brings the libraries."""


@dataclass(frozen=True)
class Audit:
    code: int
    report: str
    checks: dict[str, tuple[str, str, str]]
    """Status, what was observed and what the auditor says of it, by the name of a check."""

    @classmethod
    def of(cls, code: int, report: str, verdicts: str) -> "Audit":
        return cls(code, report, {key: tuple(found) for key, found in json.loads(verdicts or "{}").items()})

    def results(self, *statuses: str) -> dict[str, str]:
        return {key: status for key, (status, _, _) in self.checks.items() if status in statuses}


@pytest.fixture(scope="module")
def audited(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two workers, each with a simulated GPU, in a cloud of its own."""
    with simulated_gpus(tmp_path_factory.mktemp("gpus"), 2) as variables:
        cloud = Cloud.prepare(tmp_path_factory.mktemp("cloud"), images)
        cloud.variables = variables
        try:
            cloud.up()
            shape = ("--platform", "gpu-local", "--preset", "1gpu-2vcpu-8gb")
            yield Cluster.create(cloud, "audited", "--workers", "2", *shape)
        finally:
            cloud.neo("destroy", "--yes")


@pytest.fixture(scope="module")
def audit(audited: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """Run the audit as its users do: in an allocation, so that it may look at every node, and `ssh` lets it
    in.
    """
    audited.wait_until_idle()
    archive = pack(tmp_path_factory.mktemp("client") / "clustermax.tar.gz")
    audited.copy_in(archive, "/opt/clustermax.tar.gz")
    audited.ssh(f"{UNPACK} </opt/clustermax.tar.gz && rm /opt/clustermax.tar.gz")
    done = audited.try_ssh(
        f"{PATHS} {ALLOCATION} python3 -m cmax.cli audit --slurm -y -vvv 2>&1", seconds=600
    )
    said = audited.try_ssh(f"{PATHS} python3 - slurm slurm", stdin=VERDICTS).stdout
    return Audit.of(done.returncode, done.stdout, said)


def pack(archive: Path) -> Path:
    """Return an archive of the auditor, as PyPI has it."""
    run([ROOT / "scripts" / "install-client", "clustermax"], env={**os.environ, "PYTHON": sys.executable})
    (packages,) = (CLIENTS / "clustermax" / "lib").glob("python3*/site-packages")
    with tarfile.open(archive, "w:gz") as packed:
        for name in ("cmax", "prompt_toolkit", "wcwidth", "yaml"):
            packed.add(packages / name, name)
    return archive


@pytest.fixture(scope="module")
def machine_audit(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audit]:
    """Run the audit as the owner of a machine does, inside: a machine of Debian in a cloud of its own."""
    archive = pack(tmp_path_factory.mktemp("client") / "clustermax.tar.gz")
    build = ROOT / "images" / "machine" / "build"
    run([sys.executable, build, "--output", images, "--only", "debian13"])
    cloud = Cloud.prepare(tmp_path_factory.mktemp("cloud"), images)
    try:
        cloud.up()
        key = cloud.folder / "user" / "key"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key])
        create = ("compute", "instance", "create", "audited", "--public-ip", "--ssh-key", f"{key}.pub")
        cloud.neo(*create, "--image-family", "debian13", "--preset", "2vcpu-4gb", "--disk-size", "6")
        ssh = ("compute", "instance", "ssh", "audited", "--identity", str(key), "--")
        cloud.neo(*ssh, "cloud-init status --wait")
        (interface,) = cloud.neo_json("compute", "instance", "get", "audited")["status"]["network_interfaces"]
        address = interface["public_ip_address"]["address"].removesuffix("/32")
        options = [word for option in OPTIONS for word in ("-o", option)]
        with archive.open("rb") as packed:
            command = ["ssh", "-i", str(key), *options, f"ubuntu@{address}", f"sudo sh -c '{UNPACK}'"]
            subprocess.run(command, stdin=packed, check=True, timeout=300)
        done = cloud.neo(*ssh, f"{PATHS} python3 -m cmax.cli audit --vm -y -vvv 2>&1", code=None)
        said = cloud.neo(*ssh, f"{PATHS} python3 - standalone vm", stdin=VERDICTS).stdout
        yield Audit.of(done.returncode, done.stdout, said)
    finally:
        cloud.neo("destroy", "--yes")


@pytest.mark.parametrize("option", ["--gpus=1", "--gres=gpu:1", "--gpus-per-node=1"])
def test_a_job_that_names_gpus_only_gets_their_share_of_the_node(audited: Cluster, option: str) -> None:
    """Simulated GPUs."""
    audited.wait_until_idle()
    show = "echo $CUDA_VISIBLE_DEVICES; nproc; scontrol show job $SLURM_JOB_ID | grep AllocTRES"
    devices, cpus, resources = audited.run_job(show, option).split()
    assert (devices, cpus) == ("0", "2")
    assert {"cpu=2", "mem=8G", "gres/gpu=1"} <= {*resources.partition("=")[2].split(",")}


def test_the_audit_completes(audit: Audit) -> None:
    assert_complete(audit)


def test_what_can_be_answered_passes_and_the_rest_is_explained(audit: Audit, audited: Cluster) -> None:
    torch = audited.ssh("python3 -c 'import torch; print(torch.version.cuda)'").strip()
    assert_explained(audit, MUST_PASS, OF_CLUSTER, set() if torch == "None" else WITH_TORCH_FOR_GPUS)


def test_the_scorecard_reads_the_report_check_by_check(audit: Audit) -> None:
    assert_read_alike(audit, "slurm")


def test_the_audit_of_a_machine_completes_and_the_scorecard_agrees(machine_audit: Audit) -> None:
    assert_complete(machine_audit)
    assert_explained(machine_audit, MACHINE_MUST_PASS, OF_MACHINE)
    assert_read_alike(machine_audit, "vm")
    assert f"\n{summary(machine_audit)}.\n" in OF_MACHINE


def assert_complete(audit: Audit) -> None:
    assert audit.code == 0, audit.report
    assert "audit incomplete" not in audit.report
    assert summary(audit), audit.report


def summary(audit: Audit) -> str:
    """Return the line that ends a whole report; "" without one."""
    line = r"^\d+ failed, \d+ warnings?, \d+ passed, \d+ skipped$"
    return "".join(re.findall(line, audit.report, re.MULTILINE))


def assert_explained(audit: Audit, must_pass: set[str], page: str, also_pass: Collection[str] = ()) -> None:
    """The page names each check that does not pass, with its result; none that passes meanwhile."""
    assert audit.results("pass").keys() >= {*must_pass, *also_pass}, audit.report
    explained = dict(re.findall(r"^\| `([\w.-]+)` \| (\w+) \|", page, re.MULTILINE))
    assert {*also_pass} <= explained.keys()
    expected = {check: result for check, result in explained.items() if check not in also_pass}
    assert audit.results("fail", "warning") == expected


def assert_read_alike(audit: Audit, harness: str) -> None:
    """CMX-02: what the scorecard takes from the printed report is what the auditor's own code says."""
    found = read_report(audit.report, None)
    assert {each.harness for each in found} == {harness}
    read = {each.check: each.score for each in found}
    for status, score in (("pass", Score.PASS), ("warning", Score.PARTIAL), ("fail", Score.FAIL)):
        assert {check for check, each in read.items() if each is score} == audit.results(status).keys()
