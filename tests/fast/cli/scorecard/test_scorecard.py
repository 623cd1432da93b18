"""The scorecard: what counts as evidence, and that nothing is a pass without any."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from neocloud.cli.scorecard.cloud_evidence import OF_DASHBOARDS, of_cloud
from neocloud.cli.scorecard.cloud_facts import CloudFacts, IncidentFacts, NodeFacts, Records
from neocloud.cli.scorecard.criteria import CRITERIA, Tier
from neocloud.cli.scorecard.scorecard import (
    MOST_CHARACTERS,
    Evidence,
    ReportError,
    Row,
    Score,
    by_criterion,
    rating,
    read_report,
    scorecard,
)

NOW = datetime(2026, 11, 27, tzinfo=UTC)
REPORT = """# ClusterMAX audit target
==> cmax audit
PASS     BMC and IPMI tenant isolation  [bmc-ipmi]
         The sampled environment did not expose BMC or IPMI access.
         Observed: BMC/IPMI=false

WARNING  PCIe passthrough isolation  [pcie-passthrough]
         This isolation boundary is controlled by the physical host.

FAIL     Software / NCU  [software.ncu.installed]
         Not installed

SKIPPED  NVLink boundary  [nvlink-boundary]
         Not applicable.

PASS     Networking / NCCL  [networking.ncclAutoConfig]
         Nothing is forced.

1 failed, 1 warnings, 2 passed, 1 skipped
Raw collector log: /root/.clustermax/audit/1/audit.out
"""


def score_of(identifier: str, *evidence: Evidence) -> Score:
    (row,) = (row for row in scorecard({identifier: evidence}) if row.criterion.id == identifier)
    return row.score


def test_without_evidence_nothing_passes() -> None:
    rows = scorecard({})
    assert len(rows) == len(CRITERIA) == len({row.criterion.id for row in rows})
    assert {row.score for row in rows} == {Score.NOT_RUN, Score.ATTEST}
    for row in rows:
        assert (row.score is Score.ATTEST) == row.criterion.needs_document and row.decisive() is None


def test_the_worst_evidence_counts_and_what_was_skipped_says_nothing() -> None:
    passed, warned = Evidence("auditor", Score.PASS, "a"), Evidence("auditor", Score.PARTIAL, "b")
    failed, skipped = Evidence("cloud", Score.FAIL, "c"), Evidence("auditor", Score.NOT_RUN, "d")
    assert score_of("SEC-6", passed, warned, failed) is Score.FAIL
    assert score_of("SEC-6", passed, warned) is Score.PARTIAL
    assert score_of("SEC-6", passed, skipped) is Score.PASS
    assert score_of("SEC-6", skipped) is Score.NOT_RUN
    assert score_of("SEC-1", Evidence("document", Score.PASS, "attested: SOC 2")) is Score.PASS


def test_a_report_of_the_auditor_is_read_check_by_check() -> None:
    checks = read_report(REPORT, NOW)
    assert {each.check: each.score for each in checks} == {
        "bmc-ipmi": Score.PASS,
        "pcie-passthrough": Score.PARTIAL,
        "software.ncu.installed": Score.FAIL,
        "nvlink-boundary": Score.NOT_RUN,
        "networking.ncclAutoConfig": Score.PASS,
    }
    assert "did not expose BMC" in checks[0].text and checks[0].at == NOW
    scores = {row.criterion.id: row.score for row in scorecard(by_criterion(checks))}
    assert (
        scores["SEC-6"] is Score.PARTIAL and scores["NET-2"] is Score.PASS and scores["MON-6"] is Score.FAIL
    )


def test_of_several_reports_each_piece_of_evidence_names_its_harness_and_the_worst_counts() -> None:
    host = REPORT.replace("audit target\n", "audit target\n  Target: Standalone bare-metal host\n")
    vm = REPORT.replace("audit target\n", "audit target\n  Target: Local virtual machine\n")
    vm = vm.replace("WARNING  PCIe", "FAIL     PCIe").replace("1 failed, 1 warnings", "2 failed, 0 warnings")
    checks = [*read_report(host, NOW), *read_report(vm, NOW), *read_report(REPORT, NOW)]
    (row,) = (row for row in scorecard(by_criterion(checks)) if row.criterion.id == "SEC-6")
    found = [(each.harness, each.score) for each in row.evidence if each.check == "pcie-passthrough"]
    assert found == [("standalone", Score.PARTIAL), ("vm", Score.FAIL), ("", Score.PARTIAL)]
    assert row.score is Score.FAIL and (decisive := row.decisive()) is not None and decisive.harness == "vm"
    elsewhere = REPORT + "  Target: Slurm cluster\n"
    assert {each.harness for each in read_report(elsewhere, NOW)} == {""}, "it comes first"
    unknown = host.replace("Standalone bare-metal host", "Moon base")
    assert {each.harness for each in read_report(unknown, NOW)} == {""}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "incomplete"),
        (REPORT.replace("1 failed, 1 warnings", "audit stopped"), "incomplete"),
        (REPORT.replace("2 passed", "9 passed"), "counts 12 checks and shows 5"),
        ("x" * (MOST_CHARACTERS + 1), "more than"),
    ],
)
def test_what_is_no_whole_report_is_refused(text: str, why: str) -> None:
    with pytest.raises(ReportError, match=why):
        read_report(text, NOW)


def test_each_check_of_the_auditor_belongs_to_one_criterion_at_most() -> None:
    keys = [key for criterion in CRITERIA for key in criterion.checks]
    assert len(keys) == len(set(keys))


def node(name: str = "worker-0", **given: Any) -> NodeFacts:
    facts = {"is_covered": True, "checked_at": NOW, "ran": {"cpu_sdc": NOW}, "verified_at": NOW, **given}
    return NodeFacts(name, **facts)


def drain(seconds: int | None = None, **given: Any) -> IncidentFacts:
    ready = None if seconds is None else NOW + timedelta(seconds=seconds)
    return IncidentFacts("worker-0", NOW, ready, **given)


def of(facts: CloudFacts, identifier: str) -> tuple[Score, str]:
    (found,) = of_cloud(facts, NOW)[identifier]
    return found.score, found.text


def test_a_replacement_that_somebody_asked_for_is_no_fault() -> None:
    facts = CloudFacts(incidents=[drain(40), drain(30, is_asked_for=True)])
    assert of(facts, "REL-2")[1].startswith("1 of 1 nodes were replaced")
    assert of(facts, "MON-5")[1].startswith("1 drains of nodes with a fault")
    assert "MON-5" not in of_cloud(CloudFacts(incidents=[drain(30, is_asked_for=True)]), NOW)


def test_a_cloud_without_records_gives_no_evidence() -> None:
    assert of_cloud(CloudFacts([]), NOW) == {}
    assert of(CloudFacts(unread={Records.METRICS: "it was not started"}), "MON-4") == (
        Score.NOT_RUN,
        "the store of metrics gives no answer: it was not started",
    )


@pytest.mark.parametrize(
    ("facts", "identifier", "score", "text"),
    [
        (CloudFacts([node(problem="Slurm is silent")]), "MON-1", Score.FAIL, "worker-0"),
        (CloudFacts([node()]), "MON-1", Score.PARTIAL, "none has an agent"),
        (
            CloudFacts([node(agent="pass", agent_seconds=30)]),
            "MON-1",
            Score.PARTIAL,
            "of 1 check them every 30",
        ),
        (CloudFacts([node(agent="unknown", agent_seconds=30)]), "MON-1", Score.PARTIAL, "none has"),
        (CloudFacts([node(), node("w-1", is_covered=False)]), "MON-2", Score.PARTIAL, "1 of 2 nodes"),
        (CloudFacts([node(is_covered=False)]), "MON-2", Score.FAIL, "0 of 1"),
        (CloudFacts([node(ran={"gpu_gemm": NOW})]), "MON-2", Score.PASS, "1 of them on GPUs"),
        (CloudFacts([node(ran={"gpu_gemm": NOW - timedelta(days=8)})]), "MON-2", Score.PARTIAL, "0 of them"),
        (CloudFacts([node()]), "MON-3", Score.PARTIAL, "convergence on 0"),
        (CloudFacts([node(ran={})]), "MON-3", Score.FAIL, "on 0 of 1"),
        (
            CloudFacts([node(ran={"gpu_sdc": NOW, "gpu_training": NOW})]),
            "MON-3",
            Score.PASS,
            "convergence on 1",
        ),
        (CloudFacts([node()]), "LIF-3", Score.PARTIAL, "1 of 1 nodes have a certificate"),
        (CloudFacts([node(is_spare=True)]), "REL-2", Score.NOT_RUN, "1 spares are ready; no node"),
        (CloudFacts([], [drain(20), drain(90)]), "REL-2", Score.PASS, "2 of 2"),
        (CloudFacts([], [drain(20), drain(91)]), "REL-2", Score.PARTIAL, "longest took 91 s"),
        (CloudFacts([], [drain(120)]), "REL-2", Score.FAIL, "0 of 1"),
        (CloudFacts([], [drain()]), "REL-3", Score.PARTIAL, "1 drains"),
        (CloudFacts([], [drain(ended_at=NOW)]), "MON-5", Score.PARTIAL, "1 were repaired"),
        (CloudFacts([], [drain()]), "MON-5", Score.FAIL, "0 were repaired"),
        (CloudFacts([], [drain(ended_at=NOW, was_restarted=True)]), "LIF-4", Score.PASS, "1 of 1"),
        (
            CloudFacts([], [drain(ended_at=NOW, was_restarted=True, needed_people=True)]),
            "LIF-4",
            Score.FAIL,
            "0 of 1",
        ),
        (CloudFacts([], [drain(credited_seconds=60)]), "REL-1", Score.PARTIAL, "60 s together"),
        (CloudFacts([], windows=[NOW]), "LIF-5", Score.PARTIAL, "1 maintenance windows"),
        (CloudFacts([], series=["neocloud_slurm_jobs"]), "MON-4", Score.PARTIAL, "has: queue; not: state of"),
        (CloudFacts([], series=list(OF_DASHBOARDS)), "MON-4", Score.PASS, "link flaps"),
        (CloudFacts([], series=[]), "MON-4", Score.FAIL, "has: nothing"),
    ],
)
def test_records_meet_what_they_show_and_no_more(
    facts: CloudFacts, identifier: str, score: Score, text: str
) -> None:
    found = of(facts, identifier)
    assert found[0] is score and text in found[1]


def test_a_host_is_watched_by_its_agent_and_not_expected_to_run_tests_of_workers() -> None:
    host = NodeFacts("gpu-host-1", is_host=True, agent="pass", verified_at=NOW)
    found = of_cloud(CloudFacts([host]), NOW)
    assert "MON-2" not in found and "MON-3" not in found
    assert (
        found["MON-1"][0].text == "1 nodes are watched; the agents of 1 check them; the fabric is not checked"
    )
    assert of(CloudFacts([host, node()]), "MON-2")[1].startswith("1 of 1 nodes")


def test_each_piece_of_evidence_has_the_age_of_what_it_rests_on() -> None:
    earlier = NOW - timedelta(days=3)
    facts = CloudFacts([node(checked_at=earlier, ran={"cpu_sdc": earlier})], [drain(5)], [earlier])
    found = of_cloud(facts, NOW)
    assert {found[each][0].at for each in ("MON-2", "MON-3", "LIF-5")} == {earlier}
    assert {row.criterion.id for row in scorecard(found) if row.evidence} == set(found), "ids of criteria"


def test_tenants_on_one_host_without_virtual_machines_between_them_underperform() -> None:
    """CMX-03: certificates, isolated networks, and virtual machines where hosts are shared are gates."""
    gates = {each.id for each in CRITERIA if each.tier is Tier.ALL}
    assert {"SEC-1", "SEC-3", "SEC-4"} <= gates
    for gate in ("SEC_1", "SEC_3", "SEC_4"):
        found = rating(_rows(**{gate: Score.FAIL}))
        assert found.is_underperforming and found.reached is None, gate
    assert not rating(_rows(SEC_3=Score.NOT_RUN)).is_underperforming, "nobody tried it"
    assert rating(_rows(SEC_3=Score.NOT_RUN)).reached is None


def _rows(**scores: Score) -> list[Row]:
    """Rows that pass, except for criteria named here, with "_" for "-"."""
    found = {each.id: [Evidence("cloud", Score.PASS, "seen")] for each in CRITERIA}
    found |= {key.replace("_", "-"): [Evidence("cloud", score, "seen")] for key, score in scores.items()}
    return scorecard(found)


def test_a_tier_is_reached_with_every_criterion_up_to_it_and_a_gate_that_fails_outweighs_all() -> None:
    assert rating(_rows()).reached is Tier.PLATINUM and rating(_rows()).next is None
    gates = [each.id for each in CRITERIA if each.tier is Tier.ALL]
    assert {"SEC-1"} < set(gates)
    found = rating(_rows(MON_2=Score.PARTIAL, STO_3=Score.NOT_RUN))
    assert (found.reached, found.next) == (Tier.SILVER, Tier.GOLD), "the lower one counts"
    assert [row.criterion.id for row in found.missing] == ["STO-3"] and not found.is_underperforming
    failed = rating(_rows(**{gates[1].replace("-", "_"): Score.FAIL}))
    assert failed.is_underperforming and failed.reached is None
    unknown = rating(scorecard({}))
    assert not unknown.is_underperforming and unknown.reached is None, "what is not known fails nobody"
    assert [row.criterion.id for row in unknown.missing] == gates
