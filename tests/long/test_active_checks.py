"""Idle workers are tested, alone and in pairs, and a job of a user ends a test; with real Slurm."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud
from tests.e2e.cluster import Cluster
from tests.long.active_checks import PREEMPTED_WITHIN_SECONDS, preempt, preempt_pair

CHECKS = "neocloud.fleet.v1.HealthCheckService"
OPTIONS = ("--workers", "2", "--preset", "1vcpu-1gb", "--auto-repair")


@pytest.fixture(scope="module")
def fleet(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cloud = Cloud.prepare(tmp_path_factory.mktemp("cloud"), images)
    try:
        cloud.up()
        yield Cluster.create(cloud, "fleet", *OPTIONS)
    finally:
        cloud.neo("destroy", "--yes")


def health(fleet: Cluster) -> Any:
    return fleet.cloud.call(f"{CHECKS}/ListNodes", {"cluster_id": fleet.id}).items


def told(fleet: Cluster) -> list[dict[str, Any]]:
    return [{each.check: each for each in node.results} for node in health(fleet)]


def test_a_job_ends_a_running_test_and_idle_workers_are_covered(fleet: Cluster) -> None:
    """Before its first test of its own, a worker gets one that would last for minutes; and so does the pair
    when nothing is due any more."""
    found = preempt(fleet, "worker-0")
    assert found.gone_after_s <= PREEMPTED_WITHIN_SECONDS, found
    assert found.job_state == "COMPLETED" and "A job of Slurm runs" in found.report.preempted
    wait_until(
        lambda: all(node.is_covered for node in health(fleet)), "idle workers were tested", seconds=300
    )
    wait_until(lambda: all("pair_bandwidth" in each for each in told(fleet)), "and their pair", seconds=100)
    for each in told(fleet):
        assert each["cpu_sdc"].status == "pass" and each["gpu_gemm"].status == "not_run"
        assert each["pair_bandwidth"].status == each["pair_latency"].status == "pass", each
        assert "TCP, one stream" in each["pair_bandwidth"].sample
        reduced = each["pair_all_reduce"].sample
        assert "(gloo, " in reduced or "no torch in this Python" in reduced
    coverage = fleet.cloud.call(f"{CHECKS}/GetCoverage", {"cluster_id": fleet.id})
    assert coverage.nodes == coverage.covered == 2
    said = fleet.cloud.neo("fleet", "checks", "nodes")
    assert "2 of 2 nodes (100%) were tested in the last 7 days." in said.stdout + said.stderr
    found = preempt_pair(fleet, "worker-0", "worker-1")
    assert found.gone_after_s <= PREEMPTED_WITHIN_SECONDS, found
    assert found.job_state == "COMPLETED" and "A job of Slurm runs" in found.report.preempted
    fleet.ssh('test -z "$(ls -A /var/tmp | grep neocloud-check-)"')
