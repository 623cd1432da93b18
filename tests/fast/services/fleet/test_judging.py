"""Checks earn their record: verdicts are judged by independent tests and by operators, and by nobody else."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.core.store.event_log import LogEvent
from neocloud.engines.base import ExecResult
from neocloud.fleet.active.catalogue import catalogue, named
from neocloud.fleet.active.judge import CheckedBoot, CheckMeasurement, judge
from neocloud.fleet.active.report import Report, encode
from neocloud.fleet.agent.document import Document, NotRun
from neocloud.fleet.control.breakers import Breakers, shadow
from neocloud.fleet.control.judging import MeansOfTest, judging, parse, wanted_tests
from neocloud.fleet.control.precision import Judgements, Precision
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import encode as encode_event
from neocloud.fleet.nodes.events import Judged, Phase, Status, Verdict
from neocloud.services import iam
from neocloud.services.fleet.checks.records import CheckRecords, PoolRecords, elsewhere
from neocloud.services.fleet.logs.node_logs import PoolLog
from neocloud.services.fleet.node_agents import OF_PODS
from neocloud.services.fleet.reconcile.judgement import judged
from neocloud.services.fleet.reconcile.observe import new_events
from neocloud.services.fleet.types import LIMITS, Check
from tests.control_plane import sign_in
from tests.fast.services.fleet.test_fleet import WatchedCloud, eventually, of_type
from tests.fast.services.iam import keys
from tests.fast.services.slurm.cloud import fake_cloud

VERDICTS = "neocloud.fleet.v1.VerdictService"
INCIDENTS = "neocloud.fleet.v1.IncidentService"
CERTIFICATES = "neocloud.fleet.v1.CertificateService"
CHECKS = "neocloud.fleet.v1.HealthCheckService"
RULES = judging()
LINK, COPY = "pcie_width", "gpu_pcie_h2d"


def said(number: int, status: Status, check: str = LINK) -> Verdict:
    words = ("8 lanes (gpu0)", "at least 16", "oci, dcgm", "1")
    return Verdict(0.0, "worker-0", f"v{number}", check, status, "kernel", *words, e.Action.TRIAGE)


def copies_at(speed: float) -> Callable[[Sequence[str]], ExecResult]:
    """A program of a worker with an H100 that copies at this speed, and runs nothing else."""

    def answer(command: Sequence[str]) -> ExecResult:
        name = command[command.index("--host") + 1]
        asked = [each.removeprefix("--check=") for each in command if each.startswith("--check=")]
        measured = (
            [CheckMeasurement(COPY, "gpu0", speed, named(COPY).unit, "NVIDIA H100")] if COPY in asked else []
        )
        found = [judge(named(COPY), measured, CheckedBoot(name, "b", 1.0), "1")] if measured else []
        verdicts = [each for each in found if isinstance(each, Verdict)]
        left_out = [NotRun(each, "Not here") for each in asked if each != COPY]
        document = Document(name, "b", 1.0, 1.0, verdicts, left_out)
        return ExecResult(0, encode(Report(document, measured, 1.0, "", 0.0)), b"")

    return answer


@pytest.fixture
async def cloud(tmp_path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WatchedCloud]:
    """A cloud in which three judgements are enough, at most two of a node, and nothing waits."""
    rules = replace(RULES, again_after_s=0.0)
    for module in ("reconcile", "checks.active_checks"):
        monkeypatch.setattr(f"neocloud.services.fleet.{module}.judging", lambda: rules)
    limits = replace(LIMITS, judged_minimum=3, judged_per_node=2)
    monkeypatch.setattr("neocloud.services.fleet.types.LIMITS", limits)
    monkeypatch.setattr("neocloud.services.fleet.checks.active_checks.SETTLED_SECONDS", 0.0)
    for name in ("ASK_EVERY", "ASK_QUIET"):
        monkeypatch.setattr(f"neocloud.services.fleet.node_agents.{name}", 0.1)
    monkeypatch.setattr("neocloud.services.fleet.reconcile.WATCH_SECONDS", 0.1)
    monkeypatch.setattr("neocloud.fleet.active.schedule.RETRY", 0.0)
    async with fake_cloud(tmp_path) as running:
        yield WatchedCloud(**vars(running))


async def listed(cloud: WatchedCloud) -> dict[str, Any]:
    found = (await cloud.call(f"{VERDICTS}/List", cluster_id=cloud.cluster_id)).items
    return {f"{each.node} {each.verdict.id}": each for each in found if each.verdict.check == LINK}


async def record(cloud: WatchedCloud) -> Any:
    found = (await cloud.call(f"{CHECKS}/ListRecords", page_size=200)).items
    return next(each for each in found if each.check == LINK)


async def says(cloud: WatchedCloud, node: str, number: int, status: Status) -> None:
    """Have an agent say this, and return once the last event of its check is that."""
    cloud.slurm.said[node] = [said(number, status)]

    async def is_recorded() -> bool:
        found = [each for each in await cloud.events(node) if each.get("check") == LINK and "status" in each]
        return bool(found) and found[-1]["status"] == status.value

    await eventually(is_recorded)


async def judgement(cloud: WatchedCloud, node: str, number: int) -> Any:
    async def found() -> Any:
        each = (await listed(cloud)).get(f"{node} v{number}")
        return each.judgement if each is not None and each.HasField("judgement") else None

    return await eventually(found)


async def test_a_check_that_tests_confirm_leaves_the_shadow_and_drains_then(cloud: WatchedCloud) -> None:
    cloud.slurm.checks = {f"worker-{number}": copies_at(10.0) for number in range(2)}
    await cloud.watched(2, 0)
    for number, node in enumerate(("worker-0", "worker-1")):
        await says(cloud, node, number, Status.FAIL)
        found = await judgement(cloud, node, number)
        assert found.is_confirmed and found.by == f"test:{COPY}"
        await says(cloud, node, number, Status.PASS)
    before = await record(cloud)
    assert (before.judged, before.confirmed, before.active_pools) == (2, 2, 0)
    assert before.lacking == f"shadow: {LINK} has 2 judged cases, 3 are needed" and before.judged_by == COPY
    assert (before.lower, before.upper) == pytest.approx((0.342, 1.0), abs=0.001)
    nodes = await cloud.settled(in_service=2)
    assert all(each.is_schedulable for each in nodes.values()), "two right verdicts drain nothing"
    await says(cloud, "worker-0", 2, Status.FAIL)
    node = await cloud.phase_of("worker-0", "triage")
    assert node.last_incident.reason.startswith(f"{LINK}: 8 lanes"), "it fails still, and acts now"
    assert (await record(cloud)).active_pools == 1
    await says(cloud, "worker-1", 3, Status.FAIL)
    await cloud.phase_of("worker-1", "triage")
    drains = of_type(await cloud.events("worker-1"), "DrainRequested")
    assert [(each["owner"], each["check"], each["evidence"]) for each in drains] == [("neocloud", LINK, "v3")]
    assert "neocloud" in cloud.reason("worker-1") and LINK in cloud.reason("worker-1")
    await _incident_of(cloud, "worker-1")


async def _incident_of(cloud: WatchedCloud, node: str) -> None:
    """Check that the fleet's API reports the drain, and that the node's certificate has ended."""
    found = (await cloud.call(f"{INCIDENTS}/List", cluster_id=cloud.cluster_id)).items
    assert [each.node for each in found] == [node, "worker-0"], "newest first"
    same = await cloud.call(f"{INCIDENTS}/Get", id=found[0].id)
    assert same.state == "open" and same.summary.evidence == "v3"
    assert [(each.what, each.outcome) for each in same.steps] == [("moved to triage", "done")]
    assert (await cloud.refusal(f"{INCIDENTS}/Get", id=f"{found[0].node_id}/99")).code is Code.NOT_FOUND
    assert not (await cloud.call(f"{CERTIFICATES}/List", cluster_id=cloud.cluster_id)).items
    await cloud.call("neocloud.fleet.v1.NodeService/Release", id=found[0].node_id)
    cloud.slurm.said[node] = [said(9, Status.PASS)]
    await cloud.phase_of(node, "in_service")
    ended = await cloud.call(f"{INCIDENTS}/Get", id=found[0].id)
    assert ended.state == "ended" and ended.HasField("returned_at")
    assert (ended.steps[-1].what, ended.steps[-1].outcome) == ("full verification", "passed")
    figures = await cloud.call(f"{INCIDENTS}/GetReliability", cluster_id=cloud.cluster_id)
    assert dict(figures.faults) == {LINK: 2} and figures.nodes == 2 and 0 < figures.node_days < 1
    assert 0 <= figures.availability < 1 and figures.out_of_service_hours["fault"] > 0
    assert figures.rate.low < figures.rate.per_1000_node_days < figures.rate.high
    (proof,) = (await cloud.call(f"{CERTIFICATES}/List", cluster_id=cloud.cluster_id)).items
    assert proof.node == node and proof.is_valid and proof.certificate.suite == "full"


async def test_a_check_that_tests_refute_drains_nothing_and_operators_have_the_last_word(
    cloud: WatchedCloud,
) -> None:
    cloud.slurm.checks = {f"worker-{number}": copies_at(60.0) for number in range(2)}
    await cloud.watched(2, 0)
    for number, node in ((0, "worker-0"), (1, "worker-1"), (2, "worker-0")):
        await says(cloud, node, number, Status.FAIL)
        assert not (await judgement(cloud, node, number)).is_confirmed
        if node == "worker-0":
            await says(cloud, node, number, Status.PASS)
    found = await record(cloud)
    assert found.lacking == f"shadow: {LINK} was right in 0 of 3 cases" and not found.active_pools
    nodes = await cloud.settled(in_service=2)
    assert not of_type(await cloud.events("worker-1"), "DrainRequested") and not nodes["worker-1"].faults
    assert not (await cloud.call(f"{INCIDENTS}/List")).items
    assert len((await cloud.call(f"{CERTIFICATES}/List")).items) == 2

    said_so: Any = {"id": f"{cloud.cluster_id}/worker-0", "verdict": "v2", "finding": "CONFIRMED"}
    other = await iam.bootstrap(
        cloud.running.store, SystemClock(), tenant_name="other-bank", make_key=keys.other_rsa_key
    )
    outsider = replace(cloud, token=await sign_in(cloud.channel, other.credentials))
    for refused in (
        await outsider.refusal(f"{VERDICTS}/Judge", **said_so),
        await outsider.refusal(f"{VERDICTS}/List"),
        await outsider.refusal(f"{CHECKS}/ListRecords"),
        await outsider.refusal(f"{INCIDENTS}/List"),
        await outsider.refusal(f"{INCIDENTS}/GetReliability"),
        await outsider.refusal(f"{CERTIFICATES}/List"),
    ):
        assert refused.code is Code.PERMISSION_DENIED
    assert (await record(cloud)).confirmed == 0
    for _ in range(2):
        answer = await cloud.call(f"{VERDICTS}/Judge", **said_so)
        assert answer.judgement.is_confirmed and answer.judgement.by.startswith("operator:")
    assert len(of_type(await cloud.events("worker-0"), "Judged")) == 3, "the same again changes nothing"
    assert ((await record(cloud)).confirmed, (await record(cloud)).judged) == (1, 3), "in place of the test's"
    unknown = await cloud.refusal(f"{VERDICTS}/Judge", **{**said_so, "verdict": "v7"})
    assert unknown.code is Code.NOT_FOUND


# What root of a tenant's workers can do: have the agent fail, and have tests on its own workers say anything.


def judged_on(
    pool: str, tenant: str, number: int, *, is_confirmed: bool, by: str = f"test:{COPY}"
) -> PoolRecords:
    record = Judgements()
    for each in range(number):
        event = Judged(float(each), f"n{each}", LINK, f"v{each}", is_confirmed, by)
        record = record.with_judged(event, LIMITS)
    return PoolRecords(pool, tenant, {LINK: record})


def test_a_tenant_that_lies_takes_no_check_out_of_the_shadow_for_others_nor_back_into_it() -> None:
    """However many clusters it makes, and whatever the tests on its workers say."""
    lies = [judged_on(f"liar-{number}", "liar", 100, is_confirmed=True) for number in range(50)]
    assert elsewhere(lies, "mine")[LINK] == Precision(LIMITS.judged_per_tenant, 0)
    assert "5 judged cases, 20 are needed" in shadow(LINK, elsewhere(lies, "mine")[LINK], LIMITS)
    honest = [judged_on(f"p{number}", f"t{number}", 8, is_confirmed=True) for number in range(4)]
    assert not shadow(LINK, elsewhere(honest, "mine")[LINK], LIMITS)
    denials = [judged_on(f"liar-{number}", "liar", 100, is_confirmed=False) for number in range(50)]
    found = elsewhere([*honest, *denials], "mine")[LINK]
    assert found == Precision(20, 5) and not shadow(LINK, found, LIMITS)
    by_people = judged_on("p", "t", 30, is_confirmed=True, by="operator:useraccount-e00x")
    assert elsewhere([by_people], "mine")[LINK].judged == 30
    assert LINK not in elsewhere([by_people], "p"), "its own counts by itself"


async def test_a_pool_is_told_of_others_when_that_changes_what_a_check_may_do() -> None:
    known, log = CheckRecords(None, None), pool_log()  # type: ignore[arg-type]
    known._read_at = float("inf")
    known._pools = [judged_on(f"p{number}", f"t{number}", 8, is_confirmed=True) for number in range(3)]
    assert await known.changes(log, 5.0) == [], "15 judgements are too few"
    known._pools = [*known._pools, judged_on("p3", "t3", 8, is_confirmed=True)]
    assert (found := await known.changes(log, 5.0)) == [e.RecordElsewhere(5.0, "", LINK, 20, 0)]
    take(log, *found)
    assert not log.fleet.breakers.in_shadow(LINK) and await known.changes(log, 6.0) == []


def test_one_bad_node_is_no_record() -> None:
    """An agent that fails again and again on one node, where tests confirm it."""
    breakers = Breakers(LIMITS)
    for number in range(100):
        event = Judged(float(number), "n0", LINK, f"v{number}", True, f"test:{COPY}")
        breakers.records[LINK] = breakers.records.get(LINK, Judgements()).with_judged(event, LIMITS)
    assert breakers.precision(LINK) == Precision(LIMITS.judged_per_node, 0) and breakers.in_shadow(LINK)


BOOT = "1764000000.0"


def pool_log(*events: e.Event) -> PoolLog:
    log = PoolLog.of("pool")
    start = (e.Registered(1.0, "worker-0", "", "", Phase.DRAINED), e.Booted(1.0, "worker-0", BOOT))
    take(log, *start, *events)
    return log


def take(log: PoolLog, *events: e.Event) -> None:
    moment = datetime(2026, 11, 1, tzinfo=UTC)
    for event in events:
        log.take([LogEvent(event.node, moment, encode_event(event), log.position + 1)])


def at(time: float, status: Status, check: str = LINK, boot: str = BOOT) -> Verdict:
    return replace(said(0, status, check), at=time, boot=boot, id=f"{check}-{time:.0f}")


FAILS = at(100.0, Status.FAIL)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (at(101.0, Status.FAIL, COPY), True),
        (at(101.0, Status.PASS, COPY), False),
        (at(101.0, Status.UNKNOWN, COPY), None),
        (at(99.0, Status.FAIL, COPY), None),
        (at(100.0 + 86401, Status.FAIL, COPY), None),
        (at(101.0, Status.FAIL, COPY, boot="another start"), None),
        (at(101.0, Status.FAIL), None),
        (at(101.0, Status.FAIL, "gpu_gemm"), None),
        (at(101.0, Status.FAIL, "gpu"), None),
    ],
    ids=[
        "fails",
        "passes",
        "unknown",
        "before",
        "too late",
        "of another start",
        "itself",
        "other",
        "of other",
    ],
)
def test_only_its_test_judges_a_verdict_on_the_same_start_and_in_time(
    answer: Verdict, expected: bool | None
) -> None:
    log = pool_log(FAILS)
    found = judged(log, RULES, [answer], 200.0)
    assert [each.is_confirmed for each in found] == ([] if expected is None else [expected])
    assert all(each.by == f"test:{COPY}" and each.verdict == FAILS.id for each in found)
    take(log, *found)
    later = replace(answer, at=150.0)
    assert expected is None or not judged(log, RULES, [later], 201.0), "once"


def test_a_node_is_not_judged_again_and_again() -> None:
    log = pool_log(FAILS)
    take(log, *judged(log, RULES, [at(101.0, Status.FAIL, COPY)], 102.0), at(103.0, Status.PASS))
    take(log, at(104.0, Status.FAIL))
    assert not judged(log, RULES, [at(105.0, Status.FAIL, COPY)], 106.0)
    state = log.fleet.nodes["worker-0"]
    assert not wanted_tests(RULES, log.failing.of("worker-0"), state, 106.0), "nor tested for it"
    assert wanted_tests(RULES, log.failing.of("worker-0"), state, 703.0) == {COPY: 104.0}
    assert judged(log, RULES, [at(700.0, Status.PASS, COPY)], 703.0)


def test_a_measurement_in_shadow_and_a_test_that_was_found_wrong_judge_nothing() -> None:
    lost = at(100.0, Status.FAIL, "gpu_missing")
    gpu = str(Check.GPU)
    answers = [at(60.0, Status.FAIL, gpu)]
    assert [each.is_confirmed for each in judged(pool_log(lost), RULES, answers, 110.0)] == [True]
    refuted = [Judged(float(each + 2), "worker-0", gpu, f"x{each}", False) for each in range(5)]
    log = pool_log(*refuted, lost)
    wrong = Judgements(tuple(replace(each, node=f"n{n}") for n in range(4) for each in refuted))
    log.fleet.breakers.records[gpu] = wrong
    assert not judged(log, RULES, answers, 110.0)
    log = pool_log(FAILS)
    log.fleet.breakers.records[COPY] = wrong
    assert not judged(log, RULES, [at(101.0, Status.FAIL, COPY)], 110.0)


def test_a_check_that_becomes_worse_goes_back_into_the_shadow_and_stays_recorded() -> None:
    log = pool_log(e.RecordElsewhere(2.0, "", LINK, 20, 0))
    assert not log.fleet.breakers.in_shadow(LINK)
    take(log, e.RecordElsewhere(3.0, "", LINK, 20, 21))
    assert log.fleet.breakers.in_shadow(LINK) == f"shadow: {LINK} was right in 20 of 41 cases"
    take(log, FAILS)
    assert not log.fleet.nodes["worker-0"].faults and log.failing.of("worker-0")[0].was_in_shadow
    take(log, e.RecordElsewhere(101.0, "", LINK, 30, 21))
    again = replace(FAILS, at=102.0)
    assert new_events(log, "t", [], [again], 102.0)[0] == again, "it fails still, and counts now"


def test_each_check_of_the_cloud_has_one_row_that_says_who_judges_it() -> None:
    rows = {*RULES.by_people, *(check for test in RULES.tests for check in test.of)}
    of_agents = {check for check in OF_PODS if not check.startswith("probe.")}
    assert rows >= of_agents | {each.name for each in catalogue()} | set(Check)
    assert not of_agents & {test.check for test in RULES.tests}, "what an agent says judges nothing"
    for test in RULES.tests:
        is_active = test.check in {each.name for each in catalogue() if each.program not in ("", "pair")}
        assert is_active is (test.kind is MeansOfTest.ACTIVE) and (is_active or test.check in set(Check))
        assert len(test.why) > 40


@pytest.mark.parametrize("test", ["pcie_width", "gpu"])
def test_rules_in_which_a_check_judges_itself_or_has_two_rows_are_refused(test: str) -> None:
    row = f'{{"of": ["pcie_width"], "test": "{test}", "kind": "active", "within_s": 1, "why": ""}}'
    people = '{"of": ["pcie_width"], "why": ""}' if test == "gpu" else ""
    with pytest.raises(ValueError, match="two rows" if test == "gpu" else "judge itself"):
        parse(
            f'{{"version": "1", "shadow": {{}}, "again_after_s": 1, "tests": [{row}], "people": [{people}]}}'
        )
