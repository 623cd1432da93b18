"""An idle worker is tested, and a job of a user ends the test within two seconds; with real Slurm."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.active_checks import PREEMPTED_WITHIN_SECONDS, preempt
from tests.e2e.cloud import Cloud
from tests.e2e.cluster import Cluster

CHECKS = "neocloud.fleet.v1.HealthCheckService"
OPTIONS = ("--workers", "1", "--preset", "1vcpu-1gb", "--auto-repair")


@pytest.fixture(scope="module")
def fleet(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cloud = Cloud.prepare(tmp_path_factory.mktemp("cloud"), images)
    try:
        cloud.up()
        yield Cluster.create(cloud, "fleet", *OPTIONS)
    finally:
        cloud.neo("destroy", "--yes")


def health(fleet: Cluster) -> Any:
    return fleet.cloud.call(f"{CHECKS}/ListNodes", {"cluster_id": fleet.id}).items[0]


def test_a_job_ends_a_running_test_and_an_idle_worker_is_covered(fleet: Cluster) -> None:
    """Before its first test of its own, the worker gets one that would last for minutes."""
    found = preempt(fleet, "worker-0")
    assert found.gone_after_s <= PREEMPTED_WITHIN_SECONDS, found
    assert found.job_state == "COMPLETED" and "A job of Slurm runs" in found.report.preempted
    wait_until(lambda: health(fleet).is_covered, "the idle worker was tested", seconds=300)
    told = {each.check: each.status for each in health(fleet).results}
    assert told["cpu_sdc"] == "pass" and told["gpu_gemm"] == "not_run"
    coverage = fleet.cloud.call(f"{CHECKS}/GetCoverage", {"cluster_id": fleet.id})
    assert coverage.nodes == coverage.covered == 1
    said = fleet.cloud.neo("fleet", "checks", "nodes")
    assert "1 of 1 nodes (100%) were tested in the last 7 days." in said.stdout + said.stderr
    fleet.ssh('test -z "$(ls -A /var/tmp | grep neocloud-check-)"')
