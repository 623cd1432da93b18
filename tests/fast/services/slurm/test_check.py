"""The meaning of readiness figures."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from neocloud.services.compute.public import preset
from neocloud.services.slurm.api import confinement as confinement_module
from neocloud.services.slurm.api.confinement import confinement_findings
from neocloud.services.slurm.api.findings import (
    FAIL,
    MAX_LINE_CHARS,
    MOST,
    NOT_ENFORCED,
    NOT_RUN,
    PASS,
    AllReduceReport,
    AllReduceRow,
    BadReport,
    NodeFinding,
    NodeReport,
    all_reduce_findings,
    all_reduce_report,
    gpu_finding,
    job_reports,
    probe_findings,
)

HEALTHY = NodeReport(
    cpus=1.0,
    memory_mib=4096,
    write_mib_per_second=400.0,
    read_mib_per_second=900.0,
    time=0.0,
    tmp_device=1.0,
    shm_device=2.0,
)


def verdicts(probe: NodeReport, skew: float = 0.0) -> dict[str, str]:
    findings = probe_findings("worker-0", preset("cpu-local", "1vcpu-4gb"), probe, skew)
    return {finding.check: finding.verdict for finding in findings}


def test_a_healthy_node_passes_and_its_gpus_are_not_run():
    found = verdicts(HEALTHY)
    assert found.pop("gpu") == NOT_RUN
    assert set(found.values()) == {PASS}


@pytest.mark.parametrize(
    ("figure", "value", "check"),
    [
        ("cpus", 0.5, "cpu"),
        ("memory_mib", 3000, "memory"),
        ("write_mib_per_second", 3.0, "shared root write"),
        ("read_mib_per_second", 3.0, "shared root read"),
    ],
)
def test_each_figure_below_its_threshold_fails_its_own_check_only(figure, value, check):
    found = verdicts(replace(HEALTHY, **{figure: value}))
    assert found[check] == FAIL
    assert [name for name, verdict in found.items() if verdict == FAIL] == [check]


def test_a_clock_that_is_off_fails():
    assert verdicts(HEALTHY, skew=3.0)["clock skew"] == FAIL


def test_missing_gpus_fail_where_the_preset_has_some():
    wanted = preset("gpu-l40s-d", "2gpu-64vcpu-384gb")
    assert gpu_finding("worker-0", wanted, None).verdict == FAIL
    assert gpu_finding("worker-0", wanted, ["NVIDIA L40S"]).verdict == FAIL
    assert gpu_finding("worker-0", wanted, ["NVIDIA L40S"] * 2).verdict == PASS


def report(bandwidth: float, *, right: bool = True) -> AllReduceReport:
    rows = [
        AllReduceRow(size_mib=size, bus_mib_per_second=bandwidth, milliseconds=1.0, right=right)
        for size in (1, 16, 128)
    ]
    return AllReduceReport("gloo", 2, tuple(rows))


def test_only_the_largest_all_reduce_is_judged_for_speed():
    assert [finding.verdict for finding in all_reduce_findings(report(1.0))] == [PASS, PASS, FAIL]


def test_a_wrong_sum_fails_at_any_size():
    assert {finding.verdict for finding in all_reduce_findings(report(9e9, right=False))} == {FAIL}


IN_A_JOB = {
    "cpus": 1,
    "reachable_cpus": 1,
    "memory_bytes": 64 << 20,
    "tmp_device": 3,
    "shm_device": 4,
    "open_files": -1,
    "locked_bytes": -1,
    "processes": 4096,
}


def confinement(**figures: float) -> dict[str, str]:
    (job,) = job_reports(json.dumps({"node": "worker-0", **IN_A_JOB, **figures}).encode())
    found = confinement_findings([job], {"worker-0": HEALTHY}, has_gpus=True)
    return {finding.check: finding.verdict for finding in found}


def test_a_limit_of_jobs_that_nothing_enforces_is_never_called_a_pass():
    enforced = {"job CPUs", "job memory", "job /tmp and /dev/shm", "job limits"}
    found = confinement()
    assert {check for check, verdict in found.items() if verdict == PASS} == enforced
    assert set(found.values()) == {PASS, NOT_ENFORCED}
    assert found["home size"] == NOT_ENFORCED


@pytest.mark.parametrize(
    ("figure", "value", "check"),
    [
        ("cpus", 2, "job CPUs"),
        ("reachable_cpus", 2, "job CPUs"),
        ("memory_bytes", -1, "job memory"),
        ("memory_bytes", 4 << 30, "job memory"),
        ("tmp_device", HEALTHY.tmp_device, "job /tmp and /dev/shm"),
        ("shm_device", HEALTHY.shm_device, "job /tmp and /dev/shm"),
        ("open_files", 1024, "job limits"),
        ("locked_bytes", 8 << 20, "job limits"),
    ],
)
def test_what_a_job_can_use_beyond_its_share_is_not_enforced(figure: str, value: float, check: str):
    assert confinement(**{figure: value})[check] == NOT_ENFORCED


def test_a_limit_between_none_and_nothing_is_refused():
    with pytest.raises(BadReport, match="open_files"):
        job_reports(json.dumps({"node": "worker-7", **IN_A_JOB, "open_files": -0.5}).encode())


def test_folders_of_a_job_on_a_node_that_did_not_report_are_not_called_its_own():
    (job,) = job_reports(json.dumps({"node": "worker-7", **IN_A_JOB}).encode())
    found = confinement_findings([job], {"worker-0": HEALTHY}, has_gpus=False)
    assert {finding.check: finding.verdict for finding in found}["job /tmp and /dev/shm"] == NOT_ENFORCED


@pytest.mark.parametrize("output", ["", "[]", '{"node": 1}', '{"node": "worker-0", "cpus": -1}', "{"])
def test_a_report_of_a_job_that_is_none_is_refused(output: str):
    with pytest.raises(BadReport):
        job_reports(output.encode())


def of_check(check: str, why: str, **figures: float) -> NodeFinding:
    (job,) = job_reports(json.dumps({"node": "worker-0", **IN_A_JOB, **figures}).encode())
    found = confinement_findings([job], {"worker-0": HEALTHY}, has_gpus=True, why=why)
    return next(finding for finding in found if finding.check == check)


@pytest.mark.parametrize("check", ["job memory", "job CPUs"])
def test_what_the_kernel_does_not_limit_says_why_and_what_to_do(check: str):
    found = of_check(check, "the machine has control groups of version 1", memory_bytes=-1, reachable_cpus=2)
    assert found.verdict == NOT_ENFORCED
    assert "The machine has control groups of version 1. " in found.message
    assert "systemd.unified_cgroup_hierarchy=1" in found.message and "crun" in found.message


def test_the_limit_of_the_kernel_is_shown_and_gpus_say_what_to_do():
    found = of_check("job memory", "")
    assert (found.verdict, found.measured, found.threshold) == (
        *(PASS, "limit of 64 MiB"),
        "<= 64 MiB, as requested",
    )
    gpus = of_check("job GPUs", "")
    assert gpus.verdict == NOT_ENFORCED and "--exclusive" in gpus.message


PROBE = Path(confinement_module.__file__).parent / "probes" / "confinement.py"


@pytest.mark.parametrize(
    ("groups", "limits", "reported"),
    [
        ("0::/jobs/7\n", {"jobs/7": "67108864\n"}, 64 << 20),
        ("0::/jobs/7\n", {"jobs/7": "max\n"}, -1),
        ("4:memory:/a\n0::/\n", {}, -1),
        ("4:memory:/a\n", {"": "5\n"}, -1),
        ("", {}, -1),
    ],
)
def test_the_probe_reads_the_limit_of_its_own_control_group(
    groups: str, limits: dict[str, str], reported: int, tmp_path: Path
):
    """The groups are those of a process of version 2, of both versions, of version 1 alone and of none."""
    (tmp_path / "cgroup").write_text(groups)
    for name, text in limits.items():
        folder = tmp_path / "fs" / name
        folder.mkdir(parents=True)
        (folder / "memory.max").write_text(text)
    program = PROBE.read_text().replace("/proc/self/cgroup", str(tmp_path / "cgroup"))
    program = program.replace("/sys/fs/cgroup", str(tmp_path / "fs"))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, check=True, env={"SLURMD_NODENAME": "worker-0"})
    (job,) = job_reports(done.stdout)
    assert job.memory_bytes == (MOST if reported < 0 else reported)


def test_an_error_about_a_report_shows_no_control_characters_and_is_short():
    hostile = json.dumps({"backend": "\x1b[2J" + "x" * 5000, "ranks": 2, "results": []}).encode()
    with pytest.raises(BadReport) as caught:
        all_reduce_report(hostile)
    assert str(caught.value).isprintable() and len(str(caught.value)) <= MAX_LINE_CHARS
