"""Maintenance windows of nodes: announced in Slurm, drained without ending jobs, returned once verified."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.services import iam
from neocloud.services.fleet.logs.node_logs import PoolLog
from neocloud.services.fleet.reconcile.maintenance import window_events
from neocloud.services.fleet.reconcile.observe import new_events
from neocloud.services.fleet.rules import Window
from neocloud.services.slurm.public import ReservationRefused
from neocloud.services.slurm.worker_nodes import ClusterWorkers
from tests.control_plane import sign_in
from tests.fast.services.fleet.test_crash import failing, in_service, worker
from tests.fast.services.fleet.test_fleet import WatchedCloud, eventually, of_type
from tests.fast.services.iam import keys
from tests.fast.services.slurm.cloud import fake_cloud

pytestmark = pytest.mark.slow

WINDOWS = "neocloud.fleet.v1.MaintenanceWindowService"


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[WatchedCloud]:
    async with fake_cloud(tmp_path) as running:
        yield WatchedCloud(**vars(running))


def spec(cloud: WatchedCloud, start: float, end: float, **more: Any) -> dict[str, Any]:
    now = datetime.now(UTC)
    times = {"start_at": text(now + timedelta(seconds=start)), "end_at": text(now + timedelta(seconds=end))}
    return {"cluster_id": cloud.cluster_id, "reason": "New\nfirmware", **times, **more}


def text(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"


async def announce(cloud: WatchedCloud, start: float, end: float, **more: Any) -> str:
    metadata = {"parent_id": cloud.tenant_id}
    made = await cloud.call(f"{WINDOWS}/Create", metadata=metadata, spec=spec(cloud, start, end, **more))
    return made.resource_id


async def reserved(cloud: WatchedCloud) -> dict[str, Any]:
    return dict(cloud.slurm.reservations.get(cloud.cluster_id, {}))


async def test_a_window_is_announced_in_slurm_and_drains_nothing_before_its_time(cloud: WatchedCloud) -> None:
    await cloud.watched(3, 0)
    window = await announce(cloud, 3600, 7200, nodes=["worker-0", "worker-1"])
    (made,) = (await eventually(lambda: reserved(cloud))).values()
    assert made.name == f"neocloud-{window}_worker" and made.workers == ("worker-0", "worker-1")
    assert 3500 < (made.start - datetime.now(UTC)).total_seconds() < 3700
    assert ("reserve", made.name, "MAINT,IGNORE_JOBS,OVERLAP") in cloud.slurm.calls
    (shown,) = (await cloud.call(f"{WINDOWS}/List", parent_id=cloud.tenant_id)).items
    assert type(shown.status).State.Name(shown.status.state) == "ANNOUNCED"
    assert {node.phase for node in (await cloud.nodes()).values()} == {"in_service"}
    await cloud.call(f"{WINDOWS}/Delete", id=window)

    async def is_cancelled() -> bool:
        return not await reserved(cloud)

    await eventually(is_cancelled)
    assert cloud.slurm.calls.count(("reserve", made.name, "MAINT,IGNORE_JOBS,OVERLAP")) == 1


async def test_nodes_restart_in_a_window_without_a_fault_and_return_verified(cloud: WatchedCloud) -> None:
    """Five nodes that fail a check in an hour would trip its breaker, and two drains that of the cluster."""
    await cloud.watched(6, 0)
    window = await announce(cloud, 0, 3600)
    nodes = await cloud.settled(drained=6)
    boots = {name: node.boot for name, node in nodes.items()}
    assert all([hold.owner for hold in node.holds] == [f"window:{window}"] for node in nodes.values())
    await eventually(lambda: _drained_in_slurm(cloud, "New firmware"))
    for name in nodes:
        cloud.kill(name)

    async def restarted() -> bool:
        return all(node.boot != boots[name] for name, node in (await cloud.nodes()).items())

    await eventually(restarted)
    await cloud.call(f"{WINDOWS}/Delete", id=window)
    nodes = await cloud.settled(in_service=6)
    for name, node in nodes.items():
        events = await cloud.events(name)
        assert node.is_schedulable and node.certificate.boot == node.boot and not node.held
        assert not of_type(events, "StepStarted")
        assert {each["owner"] for each in of_type(events, "DrainRequested")} == {f"window:{window}"}
        assert not [each for each in of_type(events, "Verdict") if each["status"] == "fail"]


async def _drained_in_slurm(cloud: WatchedCloud, reason: str) -> bool:
    return all("DRAIN" in cloud.states(name) and reason in cloud.reason(name) for name in await cloud.nodes())


async def test_nodes_return_at_the_end_of_a_window_and_the_bill_has_its_time(cloud: WatchedCloud) -> None:
    await cloud.watched(3, 1)
    (spare,) = [name for name, node in (await cloud.nodes()).items() if node.is_spare]
    served = next(name for name in await cloud.nodes() if name != spare)
    window = await announce(cloud, 0, 4, nodes=[served])
    await cloud.phase_of(served, "drained")
    assert (await cloud.phase_of(spare, "in_service")).name == spare
    await cloud.settled(in_service=2, ready_spare=1)
    credits = await cloud.call("neocloud.billing.v1.CreditService/List", parent_id=cloud.project_id)
    (credit,) = [each for each in credits.items if each.cause.cause == "maintenance"]
    assert credit.cause.part == served and credit.cause.evidence == window
    assert "New firmware" in credit.cause.reason and credit.seconds >= 2
    shown = await cloud.call(f"{WINDOWS}/Get", id=window)
    assert type(shown.status).State.Name(shown.status.state) == "OVER"


async def test_a_refused_reservation_is_said_and_stops_nothing_else(
    cloud: WatchedCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root of a cluster can take the name of a reservation, or make Slurm refuse it in other ways."""

    async def refuse(*_: object) -> None:
        raise ReservationRefused("name in use")

    await cloud.watched(2, 0)
    monkeypatch.setattr(ClusterWorkers, "reserve", refuse)
    await announce(cloud, 3600, 7200, nodes=["worker-0"])

    async def is_said() -> bool:
        return "not announced in Slurm: name in use" in (await cloud.nodes())["worker-0"].held

    await eventually(is_said)
    cloud.kill("worker-1")
    await cloud.phase_of("worker-1", "verifying")


def test_a_job_runs_on_past_the_start_and_a_late_run_changes_nothing() -> None:
    log = PoolLog.of("pool")
    for event in in_service():
        log.fleet.apply(event)
    start = datetime.fromtimestamp(100, UTC)
    window = Window("fleetwindow-e00x", frozenset(), start, start + timedelta(hours=1), "fan")
    busy = worker("ALLOCATED", job=7, is_busy=True)
    for _ in range(3):
        for event in list(window_events(log.fleet.nodes.values(), [window], start)):
            log.fleet.apply(event)
        for event in new_events(log, "project", [busy], [replace(failing(), at=200.0)], 200):
            log.fleet.apply(event)
    state = log.fleet.nodes["w-0"]
    assert state.phase.value == "draining" and len(state.holds) == 1 and not state.faults
    (released,) = window_events(log.fleet.nodes.values(), [], start + timedelta(minutes=9))
    log.fleet.apply(released)
    assert log.fleet.nodes["w-0"].phase.value == "in_service", "it was never interrupted"


NO_WINDOWS: tuple[tuple[float, float, dict[str, Any], str], ...] = (
    (-3600, 3600, {}, "spec.start_at"),
    (3600, 1800, {}, "spec.end_at"),
    (0, 86400 * 40, {}, "spec.end_at"),
    (0, 60, {"nodes": ["worker-9"]}, "spec.nodes"),
    (0, 60, {"nodes": ["x; reboot"]}, "spec.nodes"),
    (0, 60, {"reason": "\n"}, "spec.reason"),
    (0, 60, {"cluster_id": "slurmcluster-e00none"}, "spec.cluster_id"),
)


async def test_what_is_no_window_is_refused(cloud: WatchedCloud) -> None:
    await cloud.watched(1, 0)
    metadata = {"parent_id": cloud.tenant_id}
    for start, end, more, field in NO_WINDOWS:
        given = spec(cloud, start, end, **more)
        refused = await cloud.refusal(f"{WINDOWS}/Create", metadata=metadata, spec=given)
        assert refused.code is Code.INVALID_ARGUMENT and field in refused.message


async def test_an_administrator_of_another_tenant_announces_and_sees_nothing(cloud: WatchedCloud) -> None:
    await cloud.watched(2, 0)
    other = await iam.bootstrap(
        cloud.running.store, SystemClock(), tenant_name="other-bank", make_key=keys.other_rsa_key
    )
    outsider = replace(cloud, token=await sign_in(cloud.channel, other.credentials))
    window = await announce(cloud, 3600, 7200)
    for parent in (other.tenant_id, cloud.tenant_id, other.project_id):
        given = spec(cloud, 0, 60)
        refused = await outsider.refusal(f"{WINDOWS}/Create", metadata={"parent_id": parent}, spec=given)
        assert refused.code in (Code.PERMISSION_DENIED, Code.NOT_FOUND)
    assert not (await cloud.call(f"{WINDOWS}/List", parent_id=cloud.tenant_id)).items[1:]
    for verb in ("Get", "Delete"):
        refused = await outsider.refusal(f"{WINDOWS}/{verb}", id=window)
        assert refused.code in (Code.PERMISSION_DENIED, Code.NOT_FOUND)
    refused = await outsider.refusal(f"{WINDOWS}/List", parent_id=cloud.tenant_id)
    assert refused.code in (Code.PERMISSION_DENIED, Code.NOT_FOUND)
