"""Evidence of services, jobs and checks for the scorecard: what it shows, and that a gap is never a pass."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from neocloud.cli.scorecard.cloud_evidence import LONGEST, of_cloud
from neocloud.cli.scorecard.cloud_facts import (
    SPEAK_OF,
    AuditFacts,
    CheckResult,
    CloudFacts,
    ClusterFacts,
    GpuUseFacts,
    IncidentFacts,
    NodeFacts,
    Records,
    ReliabilityFacts,
)
from neocloud.cli.scorecard.criteria import CRITERIA
from neocloud.cli.scorecard.scorecard import Evidence, Score

NOW = datetime(2026, 11, 28, tzinfo=UTC)
EARLIER = NOW - timedelta(days=3)
OLD = NOW - timedelta(days=8)


def node(name: str = "worker-0", **given: Any) -> NodeFacts:
    return NodeFacts(name, **{"cluster_id": "slurmcluster-e00own", **given})


def measured(check: str, sample: str, status: str = "pass", at: datetime = EARLIER) -> NodeFacts:
    return node(results={check: CheckResult(status, sample, at)})


def cluster(**given: Any) -> ClusterFacts:
    return ClusterFacts("slurmcluster-e00own", **{"created_at": EARLIER, **given})


def log(days: int, **given: Any) -> CloudFacts:
    return CloudFacts(audit=AuditFacts(NOW, NOW - timedelta(days=days), **{"looked_at": 100, **given}))


def of(facts: CloudFacts, identifier: str) -> Evidence:
    (found,) = of_cloud(facts, NOW)[identifier]
    return found


JOB = cluster(first_job_ended_at=EARLIER + timedelta(seconds=95))
FOREIGN = node(cluster_id="slurmcluster-e00other")
SHARED = CloudFacts([node(), FOREIGN], clusters=[cluster()])
STORED = CloudFacts(filesystems=1, buckets=2, versioned=1)
SEEN = node(agent="pass", agent_seconds=30)


@pytest.mark.parametrize(
    ("facts", "identifier", "score", "text"),
    [
        (log(91), "SEC-8", Score.PASS, "91 days old; of the newest 100, all say who, from where"),
        (log(89), "SEC-8", Score.PARTIAL, "that 90 days are kept is not shown yet"),
        (log(200, lacking={"from where": 2, "who": 0}), "SEC-8", Score.PARTIAL, "these lack: 2 from where"),
        (log(200, by_cloud=100), "SEC-8", Score.PARTIAL, "100 are the cloud's own"),
        (SHARED, "SEC-3", Score.FAIL, "those of other tenants (1 clusters)"),
        (replace(SHARED, unread={Records.CLUSTERS: "x"}), "SEC-3", Score.NOT_RUN, "gives no answer: x"),
        (replace(SHARED, cut={Records.PROJECTS}), "SEC-3", Score.NOT_RUN, "no record shows"),
        (CloudFacts(machines=3), "SEC-3", Score.NOT_RUN, "3 machines of the operators' tenant are virtual"),
        (CloudFacts(networks=2, projects=1), "SEC-4", Score.NOT_RUN, "2 networks of 1 projects"),
        (CloudFacts(clusters=[JOB]), "LIF-2", Score.PARTIAL, "1 of 1 Slurm clusters ended 95 to 95 s after"),
        (CloudFacts(clusters=[cluster()]), "LIF-2", Score.NOT_RUN, "none of the first jobs of 1"),
        (CloudFacts(clusters=[cluster(users=2)]), "ORC-1", Score.PARTIAL, "1 with users besides root"),
        (CloudFacts(clusters=[cluster()]), "ORC-1", Score.PARTIAL, "whether Kubernetes is served is not"),
        (CloudFacts(clusters=[cluster(is_ready=False)]), "ORC-1", Score.FAIL, "0 of 1 Slurm clusters"),
        (CloudFacts(clusters=[cluster(has_topology=True)]), "ORC-2", Score.PARTIAL, "1 of 1 clusters have"),
        (CloudFacts(clusters=[cluster()]), "ORC-2", Score.NOT_RUN, "none of 1 clusters has a topology"),
        (
            CloudFacts([node(gpus=8, is_simulated=True)], clusters=[cluster(has_topology=True)]),
            "ORC-2",
            Score.PARTIAL,
            "8 GPUs, simulated in part",
        ),
        (CloudFacts(serves_kubernetes=False), "ORC-3", Score.FAIL, "UNIMPLEMENTED"),
        (CloudFacts(serves_kubernetes=True), "ORC-3", Score.NOT_RUN, "no record shows storage"),
        (STORED, "STO-1", Score.NOT_RUN, "1 shared filesystems and 2 buckets; within 7 days no check"),
        (
            replace(STORED, nodes=[measured("disk_read", "1,204 MB/s"), node("worker-1")]),
            "STO-1",
            Score.PARTIAL,
            "1 of 2 workers measured 1,204 MB/s",
        ),
        (
            replace(STORED, nodes=[measured("disk_read", "9 MB/s", at=OLD)]),
            "STO-1",
            Score.NOT_RUN,
            "no check",
        ),
        (STORED, "STO-4", Score.NOT_RUN, "1 of 2 buckets keep versions"),
        (CloudFacts([SEEN]), "STO-2", Score.PARTIAL, "no failure is listed; since when is not on record"),
        (CloudFacts([node(agent="unknown")]), "STO-2", Score.NOT_RUN, "no agent looks at the mounts of 1"),
        (CloudFacts([SEEN], mount_failures=[EARLIER]), "STO-2", Score.PARTIAL, "1 times a mount was"),
        (CloudFacts([node(has_mount_fault=True)]), "STO-2", Score.FAIL, "on 1 of 1 workers a mount is"),
        (CloudFacts([measured("import_torch", "8.1 s")]), "STO-3", Score.PARTIAL, "took 8.1 s on 1 of 1"),
        (CloudFacts([measured("import_torch", "70 s", "fail")]), "STO-3", Score.FAIL, "1 of them over"),
        (CloudFacts([measured("import_torch", "no torch", "not_run")]), "STO-3", Score.NOT_RUN, "on none of"),
        (CloudFacts(clusters=[cluster(has_topology=True)]), "NET-1", Score.PARTIAL, "was not measured"),
        (CloudFacts(clusters=[cluster()]), "NET-1", Score.NOT_RUN, "none of 1 clusters"),
        (
            CloudFacts([measured("pair_all_reduce", "with worker-1: 1.31 GB/s")]),
            "NET-3",
            Score.PARTIAL,
            "of processors (gloo), not of GPUs had 1.31 GB/s on 1 of 1 workers",
        ),
        (
            CloudFacts([measured("pair_nccl_all_reduce", "380 GB/s"), measured("pair_all_reduce", "1 GB/s")]),
            "NET-3",
            Score.PARTIAL,
            "of GPUs (NCCL) had 380 GB/s on 1 of 2",
        ),
        (CloudFacts([node()]), "NET-3", Score.NOT_RUN, "no collective was measured"),
        (
            CloudFacts(reliability=ReliabilityFacts(NOW, 12.25, 2, 0.9975)),
            "REL-3",
            Score.PARTIAL,
            "2 faults in 12.2 node-days, availability 99.75%, for operators; goodput is not published",
        ),
        (
            CloudFacts(reliability=ReliabilityFacts(NOW, 0, 0)),
            "REL-3",
            Score.NOT_RUN,
            "no worker was watched",
        ),
        (CloudFacts(gpu_use=GpuUseFacts(2, 1)), "MON-6", Score.PARTIAL, "known of 1 of 2 jobs"),
        (CloudFacts(gpu_use=GpuUseFacts(1, 1, 1)), "MON-6", Score.NOT_RUN, "1 of them with simulated GPUs"),
        (CloudFacts(gpu_use=GpuUseFacts(1)), "MON-6", Score.NOT_RUN, "known of 0 of 1"),
        (CloudFacts(gpu_use=GpuUseFacts(0)), "MON-6", Score.NOT_RUN, "no job with GPUs"),
    ],
)
def test_services_and_workloads_meet_what_they_show_and_no_more(
    facts: CloudFacts, identifier: str, score: Score, text: str
) -> None:
    found = of(facts, identifier)
    assert found.score is score and text in found.text, found


def test_evidence_is_as_old_as_what_it_rests_on() -> None:
    facts = replace(STORED, nodes=[measured("disk_read", "90 MB/s")], clusters=[JOB], audit=log(91).audit)
    found = of_cloud(facts, NOW)
    assert found["STO-1"][0].at == EARLIER and found["LIF-2"][0].at == JOB.first_job_ended_at
    assert found["SEC-8"][0].at == NOW
    assert of(CloudFacts([SEEN], mount_failures=[OLD, EARLIER]), "STO-2").at == EARLIER


@pytest.mark.parametrize("records", Records)
def test_what_cannot_be_read_is_not_run_with_the_reason_and_keeps_all_else(records: Records) -> None:
    whole = CloudFacts(
        [measured("cpu_sdc", "0", at=NOW)],
        incidents=[IncidentFacts("worker-0", NOW, NOW)],
        audit=log(91).audit,
    )
    known = {each.id for each in CRITERIA}
    found = of_cloud(replace(whole, unread={records: "you may not"}), NOW)
    for identifier in SPEAK_OF[records]:
        assert identifier in known
        assert any("you may not" in each.text for each in found[identifier]), found
        assert all(each.score is not Score.PASS for each in found[identifier]), found
    assert found.keys() >= of_cloud(whole, NOW).keys() - set(SPEAK_OF[records])


def test_a_list_that_was_not_read_to_its_end_lets_nothing_pass() -> None:
    drain = IncidentFacts("worker-0", NOW, NOW)
    assert of(CloudFacts(incidents=[drain]), "REL-2").score is Score.PASS
    found = of(CloudFacts(incidents=[drain], cut={Records.INCIDENTS}), "REL-2")
    assert found.score is Score.PARTIAL and found.text.endswith("the list of drains was cut short")


def test_an_emulator_proves_nothing_but_its_records() -> None:
    facts = replace(SHARED, audit=log(91).audit, is_emulated=True, serves_kubernetes=False)
    scores = {each.score for several in of_cloud(facts, NOW).values() for each in several}
    assert Score.PARTIAL not in scores
    assert of(facts, "SEC-8").score is Score.PASS and of(facts, "ORC-3").score is Score.FAIL
    assert of(facts, "ORC-1").text.startswith("emulated, nothing of it is real: 1 of 1 Slurm clusters")


def test_text_of_tenants_is_bounded_printable_and_of_samples_only_numbers_are_shown() -> None:
    hostile = "x\x1b[2J\u202e\n" * 1000
    found = of_cloud(CloudFacts([node(hostile, problem="p")], unread={Records.AUDIT: hostile}), NOW)
    for text in (found["MON-1"][0].text, found["SEC-8"][0].text):
        assert len(text) <= LONGEST and text.isprintable(), text
    sample = f"{hostile}: 8 s (certified by ClusterMAX)"
    assert "certified" not in of(CloudFacts([measured("import_torch", sample)]), "STO-3").text
    huge = measured("import_torch", f"{'9' * 400} s")
    assert "no number of s" in of(CloudFacts([huge]), "STO-3").text
