"""The bill of a cluster whose workers are watched: spares and workers out of service are free (BILL-03)."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.core.contract import Code
from neocloud.core.store.event_log import LogEvent
from neocloud.engines.fake import FakeWorld
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import encode
from neocloud.fleet.nodes.events import OURS
from neocloud.services.fleet.logs.node_logs import PoolLog
from neocloud.services.fleet.reconcile.observe import new_events
from neocloud.services.slurm.public import NODE_POOL, Worker
from tests.fast.services.fleet.test_crash import START, in_service
from tests.fast.services.fleet.test_fleet import WatchedCloud, cloud, eventually
from tests.fast.services.slurm.cloud import fake_cloud

pytestmark = pytest.mark.slow

__all__ = ["cloud"]
CREDITS = "neocloud.billing.v1.CreditService/List"
REPORT = "neocloud.billing.v1.UsageService/GetReport"
VCPU = "cpu-d3.vcpu"


async def credits(cloud: WatchedCloud, **window: Any) -> Any:
    return await cloud.call(CREDITS, parent_id=cloud.project_id, **window)


async def report(cloud: WatchedCloud, **window: Any) -> Any:
    return await cloud.call(REPORT, parent_id=cloud.project_id, **window)


def last_hour() -> dict[str, Any]:
    end = datetime.now(UTC)
    return {"start": text_of(end - timedelta(hours=1)), "end": text_of(end)}


async def focus_report(cloud: WatchedCloud, **window: Any) -> str:
    """Return all pages: there is one for each day."""
    text, token = "", None
    while token != "":
        focus = "neocloud.billing.v1.UsageService/GetFocusReport"
        page = await cloud.call(focus, parent_id=cloud.project_id, page_token=token or "", **window)
        text, token = text + page.csv, page.next_page_token
    return text


def text_of(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


async def _spare_seconds(cloud: WatchedCloud, name: str, least: int) -> Any:
    """Return the answer once a spare is credited so many seconds."""

    async def found() -> Any:
        answer = await credits(cloud)
        spares = [each for each in answer.items if each.cause.part == name and each.cause.cause == "spare"]
        return answer if sum(each.seconds for each in spares) >= least else None

    return await eventually(found)


async def test_a_spare_and_a_broken_worker_are_credited_with_the_evidence(cloud: WatchedCloud) -> None:
    await cloud.watched(3, 1)
    (spare,) = [name for name, node in (await cloud.nodes()).items() if node.is_spare]
    answer = await _spare_seconds(cloud, spare, 2)
    open_ones = [each for each in answer.items if each.is_open]
    assert [(each.cause.part, each.cause.cause) for each in open_ones] == [(spare, "spare")]
    assert open_ones[0].resource_name == "bank" and Decimal(open_ones[0].amount) > 0
    broken = next(name for name in await cloud.nodes() if name != spare)
    cloud.slurm.figures[broken] = {"cpus": 0.5}
    cloud.kill(broken)
    node = await cloud.phase_of(broken, "triage")
    evidence = node.last_incident.evidence

    async def credited() -> Any:
        found = await credits(cloud)
        return [each for each in found.items if each.cause.evidence == evidence and each.seconds >= 2]

    (credit,) = await eventually(credited)
    assert credit.cause.part == broken and credit.cause.cause == "fault" and credit.is_open
    assert credit.start.seconds == node.last_incident.detected_at.seconds
    assert (await cloud.nodes())[broken].last_incident.credited_seconds >= 2
    spares = [each for each in (await credits(cloud)).items if each.cause.part == spare]
    assert not [each for each in spares if each.is_open], "the spare serves, and is charged"


async def test_report_and_credits_add_up_and_are_never_negative(cloud: WatchedCloud) -> None:
    await cloud.watched(3, 1)
    (spare,) = [name for name, node in (await cloud.nodes()).items() if node.is_spare]
    await _spare_seconds(cloud, spare, 2)
    broken = next(name for name in await cloud.nodes() if name != spare)
    cloud.kill(broken)
    await cloud.phase_of(broken, "ready_spare")
    await _spare_seconds(cloud, broken, 2)
    window = last_hour()
    found, answer = await report(cloud, **window), await credits(cloud, **window)
    taken = [line for line in found.lines if line.HasField("credit")]
    assert {line.credit.part for line in taken} >= {spare, broken}
    assert -sum(Decimal(line.cost) for line in taken) == Decimal(answer.total_amount)
    assert sum(Decimal(line.cost) for line in found.lines) == Decimal(found.total_cost) >= 0
    by_sku: dict[str, Decimal] = defaultdict(Decimal)
    for line in found.lines:
        by_sku[line.sku] += Decimal(line.quantity)
    assert all(quantity >= 0 for quantity in by_sku.values())
    text = await focus_report(cloud, **window)
    assert ",Credit," in text and f"not charged because of {spare}: spare" in text


async def test_the_bill_of_a_window_that_has_ended_is_the_same_after_a_kill_and_a_replay(tmp_path) -> None:
    world = FakeWorld()
    async with fake_cloud(tmp_path, world) as running:
        cloud = WatchedCloud(**vars(running))
        await cloud.watched(3, 1)
        cloud.kill("worker-0")
        await cloud.phase_of("worker-0", "ready_spare")
        window = last_hour()
        before = [await report(cloud, **window), await credits(cloud, **window)]
        (pool,) = await cloud.running.store.read(lambda tx: [row.id for row in tx.list(NODE_POOL)[0]])
        slurm = cloud.slurm

        def repeat(tx: Any) -> None:
            for each in tx.events(pool):
                tx.append_event(pool, LogEvent(each.subject, each.at, each.body))

        await cloud.running.store.write(repeat)
    async with fake_cloud(tmp_path, world) as running:
        again = WatchedCloud(**vars(running))
        again.slurm.records |= slurm.records
        assert [await report(again, **window), await credits(again, **window)] == before


async def test_no_credit_outlives_the_watching_or_the_worker(cloud: WatchedCloud) -> None:
    """The log of events stays when auto_repair is turned off, with its last outage open."""
    await cloud.watched(3, 1)
    (pool,) = await cloud.running.store.read(lambda tx: [row.id for row in tx.list(NODE_POOL)[0]])
    drained = e.DrainRequested(datetime.now(UTC).timestamp(), "worker-9", OURS, "v1")
    registered = e.Registered(drained.at, "worker-9", "", "")

    def add(tx: Any) -> None:
        for each in (registered, drained):
            tx.append_event(pool, LogEvent(each.node, datetime.now(UTC), encode(each)))

    await cloud.running.store.write(add)
    parts = {each.cause.part for each in (await credits(cloud)).items}
    assert parts <= {"worker-0", "worker-1", "worker-2"}, "the cluster is not charged for a worker-9"
    cluster = await cloud.get("Cluster", cloud.cluster_id)
    cluster.spec.auto_repair = False
    cluster.spec.node_sets[0].spare_count = 0
    await cloud.call(
        "ClusterService/Update",
        headers={"x-resetmask": "spec.auto_repair,spec.node_sets.*.spare_count"},
        metadata={"id": cloud.cluster_id},
        spec=contract.to_document(cluster.spec),
    )
    await cloud.gone(pool)
    start = text_of(datetime.now(UTC) + timedelta(seconds=1))

    async def charged() -> Any:
        return len((await report(cloud, start=start)).lines) > 0

    await eventually(charged)
    assert not (await credits(cloud, start=start)).items


async def test_another_tenant_sees_no_credits(cloud: WatchedCloud) -> None:
    await cloud.watched(2, 0)
    refused = await cloud.refusal(CREDITS, parent_id="project-e00other")
    assert refused.code in (Code.PERMISSION_DENIED, Code.NOT_FOUND)


def test_a_job_that_started_just_before_a_fault_does_not_make_the_outage_charged() -> None:
    """The server had not seen the job yet when the worker broke, and Slurm still shows it there."""
    log = PoolLog.of("pool")
    for event in in_service():
        log.fleet.apply(event)
    again = START.replace(day=3)
    seen = Worker("w-0", "w", (), again, states=frozenset({"ALLOCATED"}), is_registered=True, job=7)
    for event in new_events(log, "project", [seen], [], again.timestamp()):
        log.fleet.apply(event)
    state = log.fleet.nodes["w-0"]
    assert state.phase.value == "suspect" and not state.is_occupied


def test_a_job_that_root_starts_on_a_spare_is_seen_and_fills_no_log() -> None:
    """Attack: resume the spare in Slurm and start a job, or thousands of short ones."""
    log = PoolLog.of("pool")
    for event in in_service()[:4]:
        log.fleet.apply(event)
    count = 0
    for second in range(600):
        job = None if second % 2 else 7 + second
        seen = Worker("w-0", "w", (), START, states=frozenset({"ALLOCATED"}), is_registered=True, job=job)
        found = new_events(log, "project", [seen], [], 100.0 + second)
        count += len(found)
        for event in found:
            log.fleet.apply(event)
        assert log.fleet.nodes["w-0"].is_occupied or job is None
    assert 0 < count <= 2 * 600 / 60 + 2
