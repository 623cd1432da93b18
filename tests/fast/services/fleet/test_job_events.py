"""Events of a job's nodes, as a tenant reads them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from neocloud.core.store.event_log import LogEvent
from neocloud.core.store.protocol import Transaction
from neocloud.core.store.sqlite import MemoryStore
from neocloud.core.store.vault import Vault
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import encode
from neocloud.fleet.nodes.events import OURS, Event, Status, Verdict
from neocloud.fleet.policy.actions import Action
from neocloud.services.fleet.api.job_events import LoggedNodeHistory, before, told
from neocloud.services.slurm.public import NODE_POOL, NodeHistoryUnknown
from neocloud.testing.waiting import FakeClock
from tests.fast.monitoring.cloud import measured_cloud

SECRET = "serial-1650000000000"


def verdict(at: float, status: Status, check: str = "gpu_lost") -> Verdict:
    text = (SECRET, "over 0", "neocloud", "1")
    return Verdict(at, "worker-0", f"v{at:g}", check, status, "boot", *text, devices=SECRET)


EVENTS: tuple[Event, ...] = (
    verdict(1, Status.FAIL),
    verdict(2, Status.FAIL),
    verdict(3, Status.UNKNOWN, "mounts"),
    e.DrainRequested(4, "worker-0", OURS, "v1", "gpu_lost"),
    e.DrainRequested(5, "worker-0", f"operator:{SECRET}", SECRET),
    e.DrainRequested(6, "worker-0", "window:w-1", SECRET),
    e.DrainRequested(7, "worker-0", "slurm", SECRET),
    e.Drained(8, "worker-0"),
    e.StepStarted(9, "worker-0", Action.REBOOT, 1, 99.0),
    e.Booted(10, "worker-0", SECRET),
    verdict(11, Status.PASS),
    e.VerificationEnded(12, "worker-0", 1, passed=True),
    e.Labelled(13, "worker-0", "owner", SECRET, SECRET),
    e.DrainReleased(14, "worker-0", OURS),
)
TOLD = (
    *("the check gpu_lost fails", "drained by the fleet controller", "drained by an operator"),
    *("drained by maintenance", "drained by the tenant", "no job runs on it any more", "repair: reboot"),
    *("it started", "the check gpu_lost passes again", "it passed its verification"),
    "released by the fleet controller",
)


def test_a_tenant_reads_what_happened_and_no_evidence_or_name_of_an_operator() -> None:
    found = list(told(EVENTS))
    assert [each.text for each in found] == list(TOLD)
    assert SECRET not in repr(found)


def test_the_name_of_a_check_is_printable_and_short() -> None:
    (found,) = told([verdict(1, Status.FAIL, "\x1b[2J" + "x" * 1000)])
    assert found.text.isprintable() and len(found.text) < 100


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
async def test_the_beginning_of_a_time_is_found_without_reading_all_before_it(count: int) -> None:
    store = MemoryStore(FakeClock(), Vault(bytes(32)))
    times = [datetime.fromtimestamp(100 + 10 * number, UTC) for number in range(count)]
    await store.write(lambda tx: [tx.append_event("p", LogEvent("n", at, b"{}")) for at in times])
    reads = list[int]()

    class Counted:
        def __init__(self, tx: Transaction) -> None:
            self.tx = tx

        def events(self, log: str, **how: Any) -> Any:
            reads.append(how["after"])
            return self.tx.events(log, **how)

    for older in {0, count // 3, count}:
        at = datetime.fromtimestamp(95 + 10 * older, UTC)
        assert await store.read(lambda tx, at=at: before(cast("Transaction", Counted(tx)), "p", at)) == older
    assert len(reads) <= 3 * (2 * count.bit_length() + 3)


async def test_only_the_nodes_and_the_time_that_are_asked_for(tmp_path: Path) -> None:
    """And what comes within a minute of the end, since it may have ended the job."""
    async with measured_cloud(tmp_path) as cloud:
        cluster = await cloud.watched_cluster(2, 0)
        now = datetime.now(UTC).timestamp() + 1000
        history = LoggedNodeHistory(cloud.running.store)

        def write(tx: Transaction) -> None:
            (pool,) = [row.id for row in tx.owned(cluster) if row.kind == NODE_POOL]
            for name, seconds in (("worker-0", -1), ("worker-0", 5), ("worker-1", 6), ("worker-0", 69)):
                event = e.Drained(now + seconds, name)
                tx.append_event(pool, LogEvent(name, datetime.fromtimestamp(event.at, UTC), encode(event)))

        await cloud.running.store.write(write)
        found = await history.events(cluster, ["worker-0"], now, now + 10)
        mine = [(each.worker, round(each.at - now)) for each in found if each.text.startswith("no job")]
        assert mine == [("worker-0", 5), ("worker-0", 69)]
        with pytest.raises(NodeHistoryUnknown, match="--auto-repair"):
            await history.events("cluster-of-nobody", ["worker-0"], now, now + 10)
