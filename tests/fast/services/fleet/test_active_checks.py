"""Active checks of idle workers, with a fake engine and a fake Slurm: when they run, and what follows."""

import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.core.store.event_log import LogEvent
from neocloud.emulator.fakes import run_no_check
from neocloud.engines.base import ExecResult
from neocloud.fleet.active.catalogue import catalogue, named
from neocloud.fleet.active.judge import CheckedBoot, CheckMeasurement, judge
from neocloud.fleet.active.report import Report, decode, encode
from neocloud.fleet.active.schedule import CheckHistory, is_covered, oldest_answer
from neocloud.fleet.agent.document import Document, NotRun
from neocloud.fleet.nodes.events import Status, Verdict
from neocloud.services import iam
from neocloud.services.fleet.checks.active_checks import answers, is_idle
from neocloud.services.fleet.checks.pairs import PairRun, PairRuns
from neocloud.services.fleet.checks.run_record import Run, decode_run, encode_run
from neocloud.services.fleet.checks.runs import CheckRuns, LikeValues, NodeRuns, PoolRuns, like_values
from neocloud.services.fleet.types import LIMITS
from neocloud.services.slurm.public import Worker
from tests.control_plane import sign_in
from tests.fast.services.fleet.test_fleet import WatchedCloud, eventually
from tests.fast.services.iam import keys
from tests.fast.services.slurm.cloud import fake_cloud

SETTLED = "neocloud.services.fleet.checks.active_checks.SETTLED_SECONDS"
CHECKS = "neocloud.fleet.v1.HealthCheckService"
RUNNABLE = {each.name for each in catalogue() if each.program not in ("", "pair")}
PAIRS = {each.name for each in catalogue() if each.program == "pair"}


@pytest.fixture
async def cloud(tmp_path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WatchedCloud]:
    monkeypatch.setattr(SETTLED, 0.0)
    async with fake_cloud(tmp_path) as running:
        yield WatchedCloud(**vars(running))


async def health(cloud: WatchedCloud) -> dict[str, Any]:
    found = await cloud.call(f"{CHECKS}/ListNodes", cluster_id=cloud.cluster_id)
    return {node.name: node for node in found.items}


async def coverage(cloud: WatchedCloud) -> Any:
    return await cloud.call(f"{CHECKS}/GetCoverage", cluster_id=cloud.cluster_id)


def reports(
    values: dict[str, float], preempted: str = "", host: str = ""
) -> Callable[[Sequence[str]], ExecResult]:
    """A program of a worker that measures these values, and runs nothing else."""

    def answer(command: Sequence[str]) -> ExecResult:
        name = host or command[command.index("--host") + 1]
        asked = [each.removeprefix("--check=") for each in command if each.startswith("--check=")]
        measured = [
            CheckMeasurement(each, "", values[each], named(each).unit) for each in asked if each in values
        ]
        said = [judge(named(each.check), [each], CheckedBoot(name, "b", 1.0), "1") for each in measured]
        why = f"It was ended: {preempted}" if preempted else "There is no GPU here"
        left_out = [NotRun(each, why) for each in asked if each not in values]
        verdicts = [each for each in said if isinstance(each, Verdict)]
        document = Document(name, "b", 1.0, 1.0, verdicts, left_out)
        report = Report(document, measured, 1.0, preempted, 0.2 if preempted else 0.0)
        return ExecResult(0, encode(report), b"")

    return answer


async def test_idle_workers_are_tested_one_after_another_until_all_are_covered(cloud: WatchedCloud) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def slow(command: Sequence[str]) -> ExecResult:
        nonlocal running, most
        if "serve" in command or "--partner" in command:
            return reports({})(command)  # of a pair
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        return reports({"cpu_sdc": 0.0})(command)

    cloud.slurm.checks = {f"worker-{number}": slow for number in range(3)}
    await cloud.watched(3, 1)

    async def all_covered() -> Any:
        found = await coverage(cloud)
        return found if found.covered == 3 else None

    found = await eventually(all_covered)
    assert found.nodes == 3 and found.runs >= 3 and found.period_seconds == 7 * 86400 and most == 1
    for node in (await health(cloud)).values():
        told = {each.check: each for each in node.results}
        assert set(told) == RUNNABLE | PAIRS and node.is_covered and node.tested_at.seconds
        assert told["cpu_sdc"].status == "pass" and told["gpu_gemm"].status == "not_run"
        assert told["gpu_gemm"].sample == "There is no GPU here"
        assert 86000 < node.next_at.seconds - node.tried_at.seconds <= 86400, "the quick suite, daily"


async def test_a_failure_in_shadow_is_recorded_and_drains_nothing(cloud: WatchedCloud) -> None:
    cloud.slurm.checks = {"worker-0": reports({"cpu_sdc": 3.0})}
    await cloud.watched(2, 0)

    async def failed() -> Any:
        found = [each for each in await cloud.events("worker-0") if each.get("check") == "cpu_sdc"]
        return found[0] if found else None

    verdict = await eventually(failed)
    assert verdict["status"] == "fail" and verdict["sample"].startswith("3 wrong rounds")
    nodes = await cloud.settled(in_service=2)
    assert not nodes["worker-0"].faults and nodes["worker-0"].is_schedulable
    told = {each.check: each for each in (await health(cloud))["worker-0"].results}
    assert told["cpu_sdc"].status == "fail" and "shadow: cpu_sdc has 0 judged" in told["cpu_sdc"].shadow


async def test_a_trusted_check_that_fails_drains_its_worker(
    cloud: WatchedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = replace(LIMITS, trusted=LIMITS.trusted | {"cpu_sdc"})
    monkeypatch.setattr("neocloud.services.fleet.types.LIMITS", trusted)
    cloud.slurm.checks = {"worker-0": reports({"cpu_sdc": 3.0})}
    monkeypatch.setattr(SETTLED, 1e9)
    await cloud.watched(2, 0)
    monkeypatch.setattr(SETTLED, 0.0)
    node = await cloud.phase_of("worker-0", "triage")
    assert [each.check for each in node.faults] == ["cpu_sdc"] and "cpu_sdc" in cloud.reason("worker-0")


async def test_a_run_that_a_job_cut_short_covers_nothing_and_is_counted(cloud: WatchedCloud) -> None:
    cloud.slurm.checks = {"worker-0": reports({"cpu_sdc": 0.0}, preempted="A job of Slurm runs (process 9)")}
    await cloud.watched(1, 0)

    async def cut_short() -> Any:
        found = await coverage(cloud)
        return found if found.preempted_runs else None

    found = await eventually(cut_short)
    assert found.covered == 0 and found.longest_preemption_seconds == pytest.approx(0.2)
    node = (await health(cloud))["worker-0"]
    assert not node.is_covered and "job of Slurm" in node.problem
    assert [each.check for each in node.results] == ["cpu_sdc"]
    assert 590 < node.next_at.seconds - node.tried_at.seconds <= 601, "after a pause"


@pytest.mark.parametrize(
    "answer",
    [
        lambda command: ExecResult(0, b"{}", b""),
        lambda command: ExecResult(0, b"\x00" * 100, b""),
        lambda command: ExecResult(0, b"x" * 5_000_000, b""),
        lambda command: ExecResult(1, b"", b"python3: \x1b[31mnot found\nsecond"),
        reports({"cpu_sdc": 0.0}, host="worker-9"),
    ],
)
async def test_whatever_root_of_the_cluster_answers_is_a_run_without_a_result(
    cloud: WatchedCloud, answer: Any
) -> None:
    """A tenant's root has the python3 of the shared root in its hands."""
    cloud.slurm.checks = {"worker-0": answer}
    await cloud.watched(1, 0)

    async def tried() -> Any:
        node = (await health(cloud))["worker-0"]
        return node if node.problem else None

    node = await eventually(tried)
    assert not node.results and not node.is_covered
    assert node.problem.isprintable() and len(node.problem) <= 200
    await cloud.settled(in_service=1)


async def test_answers_to_other_checks_than_were_asked_for_are_dropped(cloud: WatchedCloud) -> None:
    """It may not report for the platform's own checks, such as "worker pod"."""

    def lie(command: Sequence[str]) -> ExecResult:
        own = reports({"cpu_sdc": 0.0})(command)
        return ExecResult(0, own.stdout.replace(b'"cpu_sdc"', b'"worker pod"'), b"")

    cloud.slurm.checks = {"worker-0": lie}
    await cloud.watched(1, 0)

    async def tried() -> bool:
        return (await health(cloud))["worker-0"].HasField("tried_at")

    await eventually(tried)
    assert {each.check for each in (await health(cloud))["worker-0"].results} <= RUNNABLE - {"cpu_sdc"}


async def test_checks_are_for_operators_alone(cloud: WatchedCloud) -> None:
    await cloud.watched(1, 0)
    other = await iam.bootstrap(
        cloud.running.store, SystemClock(), tenant_name="other-bank", make_key=keys.other_rsa_key
    )
    outsider = replace(cloud, token=await sign_in(cloud.channel, other.credentials))
    for verb in ("List", "ListNodes", "GetCoverage"):
        assert (await outsider.refusal(f"{CHECKS}/{verb}")).code is Code.PERMISSION_DENIED


async def test_the_catalogue_says_what_each_check_needs_and_who_gives_its_limits(cloud: WatchedCloud) -> None:
    found = (await cloud.call(f"{CHECKS}/List", page_size=100)).items
    assert {each.name for each in found} == {each.name for each in catalogue()}
    gemm = next(each for each in found if each.name == "gpu_gemm")
    assert "gpu" in gemm.needs and ">= 595 TFLOP/s" in {each.text for each in gemm.limits}
    assert next(each for each in found if each.name == "dcgm_diag").has_program
    assert not next(each for each in found if each.name == "ib_bandwidth").has_program


async def test_results_survive_the_process(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTLED, 0.0)
    async with fake_cloud(tmp_path) as running:
        cloud = WatchedCloud(**vars(running))
        await cloud.watched(1, 0)

        async def covered() -> bool:
            return (await coverage(cloud)).covered == 1

        await eventually(covered)
        pool = await cloud.running.store.read(
            lambda tx: next(row.id for row in tx.owned(cloud.cluster_id) if "NodePool" in row.kind)
        )
        again = await CheckRuns(cloud.running.store).read(pool)
        assert set(again.history("worker-0").answered) == RUNNABLE


IDLE = Worker(
    "worker-0",
    "worker",
    started_at=SystemClock().now(),
    states=frozenset({"IDLE"}),
    is_registered=True,
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"is_busy": True}, False),
        ({"job": 7}, False),
        ({"states": frozenset({"IDLE", "COMPLETING"})}, False),
        ({"states": frozenset({"DOWN", "NOT_RESPONDING"})}, False),
        ({"states": frozenset({"IDLE", "DRAIN"}), "reason": "neocloud: spare"}, True),
        ({"states": frozenset({"IDLE", "DRAIN"}), "reason": "bad fan"}, False),
        ({"started_at": None}, False),
        ({"is_registered": False}, False),
    ],
)
def test_only_a_worker_that_nobody_uses_or_looks_after_is_idle(changes: Any, expected: bool) -> None:
    assert IDLE.started_at is not None
    now = IDLE.started_at.timestamp() + 61
    assert is_idle(replace(IDLE, **changes), now) is expected
    assert not is_idle(replace(IDLE, **changes), now - 60), "it has just started"


def test_a_node_that_is_slower_than_its_like_fails_by_its_cohort_and_passes_again() -> None:
    """All are above the limit of 0.5 GB/s."""
    known = PoolRuns("log")

    def take(name: str, value: float, at: float) -> None:
        data = reports({"memory_bandwidth": value})(["--host", name, "--check=memory_bandwidth"]).stdout
        known.nodes.setdefault(name, NodeRuns()).take(Run(name, "b", at, decode(data)))
        known._compared = None

    for number in range(12):
        take(f"n{number}", 20.0 + number / 100, 1.0)
    take("slow", 14.0, 1.0)
    assert known.history("slow").repeats == {"memory_bandwidth"} and not known.history("n1").repeats
    assert _status(known, "slow") is Status.PASS, "one run decides nothing"
    take("slow", 14.1, 2.0)
    assert _status(known, "slow") is Status.FAIL and not known.history("slow").repeats
    ((said, _),) = answers(known.nodes["slow"], "slow", known)
    assert isinstance(said, Verdict) and "-29.7% of the median" in said.sample and "its cohort" in said.source
    take("slow", 20.0, 3.0)
    assert _status(known, "slow") is Status.PASS


def _status(known: PoolRuns, name: str) -> Status:
    ((said, _),) = answers(known.nodes[name], name, known)
    assert isinstance(said, Verdict)
    return said.status


def test_an_emulated_worker_claims_nothing() -> None:
    data = run_no_check(["--host", "w", "--check=cpu_sdc"]).stdout
    assert b"This worker is emulated" in data and b'"verdicts": []' in data


def test_a_failure_before_a_restart_is_no_answer_after_it() -> None:
    """The next run, which is due at once, finds whether the repair has helped."""
    known = PoolRuns("log")
    data = reports({"cpu_sdc": 1.0, "memory_bandwidth": 9.0})
    report = decode(data(["--host", "n", "--check=cpu_sdc", "--check=memory_bandwidth"]).stdout)
    known.nodes["n"] = NodeRuns()
    known.nodes["n"].take(Run("n", "before", 1.0, report))
    assert set(known.history("n", "before").answered) == {"cpu_sdc", "memory_bandwidth"}
    assert set(known.history("n", "after").answered) == {"memory_bandwidth"}


def with_bad_nodes(*bad: str) -> Callable[[Sequence[str]], ExecResult]:
    """Workers of which some have a slow network: the one that measures a pair, and the one that serves."""

    def answer(command: Sequence[str]) -> ExecResult:
        ends = {command[command.index("--host") + 1]}
        if "--partner" in command:
            ends.add(command[command.index("--partner") + 1].partition(":")[0])
        return reports({"cpu_sdc": 0.0, "pair_bandwidth": 0.1 if ends & set(bad) else 20.0})(command)

    return answer


async def test_pairs_of_idle_workers_name_the_slow_one_and_clear_the_other(cloud: WatchedCloud) -> None:
    cloud.slurm.checks = {f"worker-{number}": with_bad_nodes("worker-1") for number in range(4)}
    await cloud.watched(4, 0)

    async def told() -> Any:
        found = {
            name: {each.check: each for each in node.results} for name, node in (await health(cloud)).items()
        }
        statuses = {
            name: each["pair_bandwidth"].status for name, each in found.items() if "pair_bandwidth" in each
        }
        expected = {f"worker-{number}": "fail" if number == 1 else "pass" for number in range(4)}
        return found if statuses == expected else None

    found = await eventually(told)
    failed = found["worker-1"]["pair_bandwidth"]
    assert "which pass with others" in failed.sample and "0.1 Gbit/s" in failed.sample
    assert "shadow" in failed.shadow and found["worker-0"]["pair_all_reduce"].status == "not_run"
    events = [each for each in await cloud.events("worker-1") if each.get("check") == "pair_bandwidth"]
    assert [each["status"] for each in events] == ["fail"] and "worker" in events[0]["sample"]
    nodes = await cloud.settled(in_service=4)
    assert not nodes["worker-0"].faults and nodes["worker-1"].is_schedulable


async def test_of_two_workers_nobody_is_named_and_no_verdict_recorded(cloud: WatchedCloud) -> None:
    cloud.slurm.checks = {f"worker-{number}": with_bad_nodes("worker-1") for number in range(2)}
    await cloud.watched(2, 0)

    async def told() -> Any:
        found = [each for node in (await health(cloud)).values() for each in node.results]
        pairs = [each for each in found if each.check == "pair_bandwidth"]
        return pairs if len(pairs) == 2 else None

    found = await eventually(told)
    assert {each.status for each in found} == {"unknown"}
    assert all("no node that is known good was idle" in each.sample for each in found)
    nodes = await cloud.settled(in_service=2)
    assert not any(node.faults for node in nodes.values())
    for name in nodes:
        assert not [each for each in await cloud.events(name) if each.get("check") in PAIRS]


async def test_a_job_on_the_node_that_serves_gives_the_pair_no_result(cloud: WatchedCloud) -> None:
    served = reports({}, preempted="A job of Slurm runs (process 9)")

    def answer(command: Sequence[str]) -> ExecResult:
        return served(command) if "--port" in command else with_bad_nodes("worker-1")(command)

    cloud.slurm.checks = {f"worker-{number}": answer for number in range(2)}
    await cloud.watched(2, 0)

    async def cut_short() -> Any:
        found = await coverage(cloud)
        return found if found.preempted_runs else None

    found = await eventually(cut_short)
    assert found.longest_preemption_seconds == pytest.approx(0.2)
    assert not [
        each for node in (await health(cloud)).values() for each in node.results if each.check in PAIRS
    ]


def test_a_run_of_a_pair_and_the_hardware_are_read_back_from_the_log() -> None:
    run = Run("n", "b", 1.0, None, "it failed", "m", "c", "cpu/small")
    assert decode_run(LogEvent("n", datetime.fromtimestamp(1, UTC), encode_run(run))) == run


def pool_of(values: dict[str, float], hardware: str = "cpu/small", runs: int = 3) -> PoolRuns:
    known = PoolRuns("log")
    for name, value in values.items():
        data = reports({"memory_bandwidth": value})(["--host", name, "--check=memory_bandwidth"]).stdout
        for at in range(runs):
            run = Run(name, "b", float(at), decode(data), hardware=hardware)
            known.nodes.setdefault(name, NodeRuns()).take(run)
    return known


def test_a_small_pool_is_compared_with_the_same_preset_of_other_tenants_who_stay_unseen() -> None:
    own = pool_of({"good": 20.0, "slow": 12.0})
    pools = {f"p{number}": pool_of({"a": 20.1, "b": 19.9, "c": 20.0}) for number in range(5)} | {"own": own}
    pools["other"] = pool_of({f"n{number}": 400.0 for number in range(9)}, hardware="cpu/large")
    tenants = {name: f"tenant-{name}" for name in pools}
    own.know(like_values("own", pools, tenants, 10.0), 10.0)
    assert _status(own, "slow") is Status.FAIL and _status(own, "good") is Status.PASS
    ((said, _),) = answers(own.nodes["slow"], "slow", own)
    assert isinstance(said, Verdict)
    assert said.sample == "more than 8% worse than its like"
    assert said.threshold == "like nodes with cpu/small in the cloud"
    own.know(LikeValues(), 20.0)
    assert _status(own, "slow") is Status.PASS, "two nodes are no cohort"


@pytest.mark.parametrize("lie", [0.001, 12.0, 1e15])
def test_root_of_another_tenant_neither_shields_a_node_nor_gets_one_blamed(lie: float) -> None:
    own = pool_of({"good": 20.0, "slow": 12.0})
    pools = {f"p{number}": pool_of({"a": 20.1, "b": 19.9, "c": 20.0}) for number in range(4)} | {"own": own}
    pools |= {f"evil{number}": pool_of({f"n{each}": lie for each in range(40)}) for number in range(3)}
    tenants = {name: name.rstrip("0123456789") if name.startswith("evil") else name for name in pools}
    own.know(like_values("own", pools, tenants, 10.0), 10.0)
    assert _status(own, "slow") is Status.FAIL and _status(own, "good") is Status.PASS


def test_pairs_count_for_the_coverage_like_checks_of_one_node() -> None:
    """UNKNOWN is no answer, a failure before the last start neither; a reason not to run is one."""
    runs, leaves = PairRuns(), dict[str, str]()

    def measure(
        first: str, second: str, speed: float, at: float, boots: tuple[str, str] = ("1", "1")
    ) -> None:
        data = reports({"pair_bandwidth": speed})(
            ["--host", first, *(f"--check={name}" for name in sorted(PAIRS))]
        ).stdout
        runs.take(PairRun((first, second), boots, at, decode(data)))

    def answered(boots: Mapping[str, str]) -> dict[str, float]:
        known = runs.answered(boots, leaves, 100.0)
        return {name: at for name, each in known.items() if (at := each.get("pair_bandwidth")) is not None}

    boots = dict.fromkeys("abc", "1")
    measure("a", "b", 0.01, 10.0)
    assert answered(boots) == {}, "of two nodes, neither is named"
    assert runs.answered(boots, leaves, 100.0)["a"]["pair_latency"] == 10.0, "no GPU is a reason that stays"
    measure("a", "c", 20.0, 20.0)
    assert answered(boots) == {"c": 20.0}, "a failed with b, and b with nobody known good"
    measure("b", "c", 0.01, 30.0)
    measure("a", "b", 0.01, 40.0)
    assert answered(boots) == {"a": 40.0, "b": 40.0, "c": 30.0}, "b is named, which is an answer"
    assert answered(boots | {"b": "2"}) == {"a": 20.0, "c": 20.0}, "b started again"
    runs.take(PairRun(("a", "c"), ("1", "1"), 50.0, None))
    assert answered(boots)["c"] == 30.0, "a run without a result is no answer"
    node = CheckHistory("a", answered=dict.fromkeys(RUNNABLE, 50.0))
    assert is_covered(node, 60.0), "it has nobody to be measured with"
    assert not is_covered(replace(node, paired={}), 60.0)
    assert oldest_answer(replace(node, paired=dict.fromkeys(PAIRS, 40.0))) == 40.0


def test_a_busy_host_gives_no_answer_and_is_asked_again() -> None:
    said = [NotRun("cpu_sdc", "busy: it waited 9.0 of 10.0 s for a processor"), NotRun("gpu_gemm", "no GPU")]
    node = NodeRuns()
    node.take(Run("n", "b", 10.0, Report(Document("n", "b", 1.0, 1.0, [], said))))
    assert node.answered == {"gpu_gemm": 10.0} and node.unfinished == 1
    assert node.problem == "cpu_sdc: busy: it waited 9.0 of 10.0 s for a processor"
    pairs = PairRuns()
    said = [NotRun("pair_bandwidth", "busy: it waited"), NotRun("pair_nccl_all_reduce", "no GPU")]
    pairs.take(PairRun(("a", "b"), ("1", "1"), 10.0, Report(Document("a", "b", 1.0, 1.0, [], said))))
    assert set(pairs.answered({"a": "1", "b": "1"}, {}, 20.0)["b"]) == {"pair_nccl_all_reduce"}
