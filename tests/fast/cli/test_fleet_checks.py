"""`neo fleet checks`, and `neo fleet check --active` on this host."""

import json
from datetime import UTC, datetime
from pathlib import Path

from neocloud.messages.neocloud.fleet.v1 import (
    HealthCheck,
    HealthCheckCoverage,
    ListHealthChecksResponse,
    ListNodeHealthResponse,
    NodeHealth,
)

from neocloud.fleet.agent.document import from_json
from tests.fast.cli.conftest import Neo, in_own_process
from tests.fast.cli.fake_control_plane import FakeServer

SERVICE = "neocloud.fleet.v1.HealthCheckService"


def a_node() -> NodeHealth:
    node = NodeHealth(
        id="slurmcluster-e00x/worker-0", name="worker-0", cluster_id="slurmcluster-e00x", cluster_name="bank"
    )
    for field in (node.tested_at, node.tried_at):
        field.FromDatetime(datetime(2026, 11, 26, 9, 0, tzinfo=UTC))
    node.next_at.FromDatetime(datetime(2026, 11, 27, 9, 0, tzinfo=UTC))
    node.is_covered = True
    for check, status, sample in (
        ("cpu_sdc", "fail", "3 wrong rounds"),
        ("metadata", "pass", "8,000 operations/s"),
        ("gpu_gemm", "not_run", "There is no GPU here"),
    ):
        result = node.results.add(check=check, status=status, sample=sample)
        result.at.FromDatetime(datetime(2026, 11, 26, 9, 0, tzinfo=UTC))
        result.shadow = "shadow: it has no record" if status == "fail" else ""
    return node


def serve(server: FakeServer) -> None:
    other = NodeHealth(id="slurmcluster-e00x/worker-1", name="worker-1", cluster_name="bank")
    other.next_at.FromDatetime(datetime(2026, 11, 27, 9, 0, tzinfo=UTC))
    other.problem = "A job of Slurm runs (process 9)"
    check = HealthCheck(name="gpu_gemm", title="Matrix multiplication", needs=["gpu"], suites=["full"])
    check.has_program = True
    check.limits.add(text=">= 595 TFLOP/s", models=["H100"], source="derived")
    pair = HealthCheck(name="pair_latency", needs=["two nodes"], suites=["full"], has_program=True)
    server.serve(f"{SERVICE}/List", ListHealthChecksResponse(items=[check, pair]))
    server.serve(f"{SERVICE}/ListNodes", ListNodeHealthResponse(items=[a_node(), other]))
    coverage = HealthCheckCoverage(
        nodes=2,
        covered=1,
        period_seconds=7 * 86400,
        runs=5,
        preempted_runs=2,
        longest_preemption_seconds=0.31,
    )
    server.serve(f"{SERVICE}/GetCoverage", coverage)


def test_coverage_and_results_of_nodes_are_shown(signed_in: Neo, cloud: FakeServer) -> None:
    serve(cloud)
    ran = signed_in("fleet", "checks", "nodes")
    assert ran.code == 0, ran.err
    assert "bank/worker-0" in ran.out and "cpu_sdc failed or gave no answer; 1 passed, 1 not run" in ran.out
    assert "A job of Slurm runs" in ran.out and "2026-11-27 09:00 UTC" in ran.out
    said = ran.out + ran.err
    assert "1 of 2 nodes (50%) were tested in the last 7 days." in said
    assert "2 of 5 runs gave way to a job; the longest took 0.31 s to end." in said


def test_one_node_says_what_each_check_measured(signed_in: Neo, cloud: FakeServer) -> None:
    serve(cloud)
    ran = signed_in("fleet", "checks", "get", "bank/worker-0")
    assert ran.code == 0 and "There is no GPU here" in ran.out and "3 wrong rounds" in ran.out
    assert "cpu_sdc drains no node: shadow: it has no record" in ran.out + ran.err
    assert signed_in("fleet", "checks", "get", "bank/worker-7").code != 0


def test_the_catalogue_names_needs_and_limits(signed_in: Neo, cloud: FakeServer) -> None:
    serve(cloud)
    ran = signed_in("fleet", "checks", "list")
    assert "gpu_gemm" in ran.out and ">= 595 TFLOP/s (H100)" in ran.out
    assert ran.out.count("weekly") == 2, "pairs of idle workers are measured weekly, too"
    given, _ = json.loads(signed_in("fleet", "checks", "list", "--output", "json").out)
    assert given["limits"][0]["source"] == "derived"


def test_active_checks_of_this_host_have_measured_values(tmp_path: Path) -> None:
    words = ("fleet", "check", "--active", "quick", "--folder", str(tmp_path), "--beside-jobs")
    ran = in_own_process(*words, "--output", "json")
    document = from_json(json.loads(ran.stdout))
    told = {each.check: each for each in document.verdicts}
    assert told["cpu_sdc"].status == "pass" and "rounds on" in told["cpu_sdc"].sample
    assert "GB/s" in told["memory_bandwidth"].sample
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_ends_with_the_reason(tmp_path: Path) -> None:
    ran = in_own_process("fleet", "check", "--active", "quick", "--folder", str(tmp_path / "none"))
    assert ran.returncode == 1 and "No such file" in ran.stderr and "Traceback" not in ran.stderr
