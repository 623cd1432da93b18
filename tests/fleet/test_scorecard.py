"""The scorecard: what counts as evidence, and that nothing is a pass without any."""

from datetime import UTC, datetime, timedelta

import pytest

from neocloud.fleet.criteria import CRITERIA
from neocloud.fleet.scorecard import (
    MOST_CHARACTERS,
    Evidence,
    NodeFacts,
    ReportError,
    Score,
    by_criterion,
    of_nodes,
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


def node(name: str = "worker-0", **given: object) -> NodeFacts:
    facts: dict[str, object] = {"is_schedulable": True, "verified_at": NOW, "replaced_in": None, **given}
    return NodeFacts(name, **facts)  # type: ignore[arg-type]


def test_records_of_nodes_meet_what_they_show_and_no_more() -> None:
    assert not of_nodes([], NOW)
    found = of_nodes([node(), node("worker-1", verified_at=NOW - timedelta(days=8))], NOW)
    assert "1 of 2 nodes passed" in found["MON-2"].text and found["MON-2"].score is Score.PARTIAL
    assert found["MON-1"].score is Score.PARTIAL and "REL-2" not in found, "nothing was replaced yet"
    assert of_nodes([node(verified_at=None)], NOW)["MON-2"].score is Score.FAIL
    assert of_nodes([node(problem="Slurm does not answer")], NOW)["MON-1"].score is Score.FAIL


@pytest.mark.parametrize(
    ("seconds", "score"), [((20, 90), Score.PASS), ((20, 91), Score.PARTIAL), ((120,), Score.FAIL)]
)
def test_replacements_are_held_against_90_seconds(seconds: tuple[int, ...], score: Score) -> None:
    nodes = [node(f"worker-{each}", replaced_in=timedelta(seconds=each)) for each in seconds]
    assert of_nodes(nodes, NOW)["REL-2"].score is score
