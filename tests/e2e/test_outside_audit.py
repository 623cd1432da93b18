"""What an outside judge says of a cluster of ours: `cmax audit` of ClusterMAX, unmodified, on a login node.

It completes only where a partition has GPUs, so the workers have simulated ones: what it says of GPUs,
their driver and libraries is not judged here. docs/reference/clustermax-audit.md is its report, with the
reasons for what does not pass.
"""

import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from neocloud.fleet.scorecard import Score, read_report
from tests.e2e.cloud import Cloud, run
from tests.e2e.cluster import Cluster
from tests.e2e.simulated_gpus import simulated_gpus

ROOT = Path(__file__).resolve().parents[2]
PATHS = "PYTHONPATH=/opt/clustermax"
ALLOCATION = "salloc --quiet --nodes=2 --ntasks-per-node=1 --gres=gpu:1 --time=15"
PAGE = ROOT / "docs" / "reference" / "clustermax-audit.md"
VERDICTS = """
import json, pathlib
from cmax import audit_report, security

folder = max((pathlib.Path.home() / ".clustermax" / "audit").iterdir())
values = json.loads((folder / "audit.values.json").read_text())
checks = audit_report.evaluate(values, security.find_runtime_root(), harness="slurm", environment="slurm")
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
"""What a cluster without a fabric and a driver of GPUs can answer, whatever its host."""


@dataclass(frozen=True)
class Audit:
    code: int
    report: str
    checks: dict[str, tuple[str, str, str]]
    """Status, what was observed and what the auditor says of it, by the name of a check."""

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
    """As its users run it: in an allocation, so that it may look at every node, and `ssh` lets it in."""
    audited.wait_until_idle()
    install(audited, tmp_path_factory.mktemp("client") / "clustermax.tar.gz")
    done = audited.try_ssh(
        f"{PATHS} {ALLOCATION} python3 -m cmax.cli audit --slurm -y -vvv 2>&1", seconds=600
    )
    said = audited.try_ssh(f"{PATHS} python3 -", stdin=VERDICTS).stdout
    checks = {key: tuple(found) for key, found in json.loads(said or "{}").items()}
    return Audit(done.returncode, done.stdout, checks)


def install(cluster: Cluster, archive: Path) -> None:
    """Copy the auditor, as PyPI has it, to the login node."""
    run([ROOT / "scripts" / "install-client", "clustermax"], env={**os.environ, "PYTHON": sys.executable})
    (packages,) = (ROOT / ".cache" / "clients" / "clustermax" / "lib").glob("python3*/site-packages")
    with tarfile.open(archive, "w:gz") as packed:
        for name in ("cmax", "prompt_toolkit", "wcwidth", "yaml"):
            packed.add(packages / name, name)
    cluster.ssh("mkdir -p /opt/clustermax")
    cluster.copy_in(archive, "/opt/clustermax.tar.gz")
    cluster.ssh("tar -C /opt/clustermax -xzf /opt/clustermax.tar.gz && rm /opt/clustermax.tar.gz")


@pytest.mark.parametrize("option", ["--gpus=1", "--gres=gpu:1", "--gpus-per-node=1"])
def test_a_job_that_names_gpus_only_gets_their_share_of_the_node(audited: Cluster, option: str) -> None:
    """Simulated GPUs."""
    audited.wait_until_idle()
    show = "echo $CUDA_VISIBLE_DEVICES; nproc; scontrol show job $SLURM_JOB_ID | grep AllocTRES"
    devices, cpus, resources = audited.run_job(show, option).split()
    assert (devices, cpus) == ("0", "2")
    assert {"cpu=2", "mem=8G", "gres/gpu=1"} <= {*resources.partition("=")[2].split(",")}


def test_the_audit_completes(audit: Audit) -> None:
    assert audit.code == 0, audit.report
    assert "audit incomplete" not in audit.report
    assert re.search(r"^\d+ failed, \d+ warnings?, \d+ passed, \d+ skipped$", audit.report, re.MULTILINE)


def test_what_can_be_answered_passes_and_the_rest_is_explained(audit: Audit) -> None:
    """The page names each check that does not pass, with its result; none that passes meanwhile."""
    assert audit.results("pass").keys() >= MUST_PASS, audit.report
    explained = dict(re.findall(r"^\| `([\w.-]+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE))
    assert audit.results("fail", "warning") == explained


def test_the_scorecard_reads_the_report_check_by_check(audit: Audit) -> None:
    """CMX-02: what it takes from the printed report is what the auditor's own code says."""
    read = {each.check: each.score for each in read_report(audit.report, None)}
    for status, score in (("pass", Score.PASS), ("warning", Score.PARTIAL), ("fail", Score.FAIL)):
        assert {check for check, each in read.items() if each is score} == audit.results(status).keys()
