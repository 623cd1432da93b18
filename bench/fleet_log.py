"""Measure how long a server takes to know the state of a pool at its start, with and without a snapshot.

    python bench/fleet_log.py [--events 100000] [--nodes 100]

A log of so many events is written into a SQLite store in a temporary folder: nodes whose checks fail and pass
again, drains, repairs, verifications, jobs. The pool is then read as a new process reads it: from the first
event, from the snapshot that this first read stored, and, once all but the last events are archived, from the
first event again. All of it in one run, so that the ratios hold on a busy machine, too.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from neocloud.core.clock import SystemClock  # noqa: E402
from neocloud.core.store import LogEvent, Snapshot, Store, Transaction, open_store  # noqa: E402
from neocloud.fleet.nodes import events as e  # noqa: E402
from neocloud.fleet.nodes.event_json import encode  # noqa: E402
from neocloud.fleet.nodes.events import OURS, Event, Phase, Status  # noqa: E402
from neocloud.fleet.policy.actions import Action, Suite  # noqa: E402
from neocloud.server.retention import ARCHIVED_AT_ONCE, archive_log  # noqa: E402
from neocloud.services.fleet.logs.node_logs import NodeLogs  # noqa: E402

POOL = "fleetpool-bench"
PAGE = 5000
START = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def story(nodes: int) -> Iterator[Event]:
    """Yield events without an end: one node after the other goes through a life of 18 events."""
    at, attempts, boots = START, [0] * nodes, 0
    for number in range(nodes):
        yield e.Registered(at, f"w-{number}", f"r{number // 4}", f"l{number // 8}", Phase.DRAINED)
    while True:
        for number in range(nodes):
            node, boot = f"w-{number}", f"2026-01-01T00:00:{boots:06}"
            boots, at = boots + 1, at + 600.0
            attempts[number] += 3
            first = attempts[number] - 2
            yield e.Booted(at, node, boot)
            yield from verified(at, node, first)
            yield e.SpareReserved(at + 3, node)
            yield e.Attached(at + 4, node)
            yield e.Returned(at + 5, node)
            for step in range(2):
                yield e.Assigned(at + 10 + step * 20, node, "project-e00a", f"{boots}{step}")
                yield e.Unassigned(at + 20 + step * 20, node, f"{boots}{step}")
            for step, status in enumerate((Status.FAIL, Status.PASS, Status.FAIL)):
                sample = "running", "running", "engine", "1", Action.REBOOT
                yield e.Verdict(
                    at + 60 + step, node, f"verdict-{boots}-{step}", "worker pod", status, boot, *sample
                )
            yield e.DrainRequested(at + 70, node, OURS, f"verdict-{boots}-2", "worker pod")
            yield e.Drained(at + 71, node)
            yield e.StepStarted(at + 72, node, Action.REBOOT, first + 1, at + 900)
            yield e.StepEnded(at + 90, node, first + 1, succeeded=True)
            yield from verified(at + 91, node, first + 2)


def verified(at: float, node: str, attempt: int) -> Iterator[Event]:
    yield e.VerificationStarted(at + 1, node, Suite.FULL, attempt, at + 900)
    yield e.VerificationEnded(at + 2, node, attempt, passed=True, valid_until=at + 7 * 86400)


async def write(store: Store, events: int, nodes: int) -> None:
    found = story(nodes)
    for begin in range(0, events, PAGE):
        page = [next(found) for _ in range(min(PAGE, events - begin))]

        def append(tx: Transaction, page: list[Event] = page) -> None:
            for each in page:
                at = datetime.fromtimestamp(each.at, UTC)
                tx.append_event(POOL, LogEvent(each.node, at, encode(each)))

        await store.write(append)


async def start(store: Store) -> tuple[float, float, int]:
    """Return the seconds until a new process knows the state, the processor time of it, and how many outages
    it knows."""
    began, worked = time.perf_counter(), time.process_time()
    log = await NodeLogs(store).read(POOL)
    return time.perf_counter() - began, time.process_time() - worked, len(log.outages.all)


async def measure(folder: Path, events: int, nodes: int) -> None:
    path = folder / "state.db"
    store = await open_store(path, bytes(32), SystemClock())
    await write(store, events, nodes)
    whole, worked, outages = await start(store)  # stores the snapshot
    kept = await store.read(lambda tx: tx.snapshot(POOL))
    from_snapshot, of_snapshot, again = min([await start(store) for _ in range(3)])
    assert kept is not None and again == outages
    show(f"{events} events of {nodes} nodes, from the first one", whole)
    print(f"processor time of it: {worked:.3f} s, {worked / events * 1e6:.1f} us an event", flush=True)
    show(f"the same from a snapshot of {len(kept.body) / 1e6:.2f} MB", from_snapshot, whole)
    print(f"processor time of it: {of_snapshot:.3f} s", flush=True)
    await store.write(lambda tx: tx.put_snapshot(POOL, Snapshot(0, "none", b"")))
    before = await size(store)
    began = time.perf_counter()
    await archive_log(store, POOL, SystemClock().now() + timedelta(days=36500))
    show(f"archiving all in batches of {ARCHIVED_AT_ONCE}", time.perf_counter() - began)
    after = await size(store)
    print(
        f"bytes of the events: {before / 1e6:.1f} MB, archived {after / 1e6:.1f} MB, {before / after:.1f} : 1"
    )
    archived, _, again = await start(store)
    assert again == outages
    show("from the first event, archived", archived, whole)
    await store.close()


async def size(store: Store) -> int:
    def work(tx: object) -> int:
        connection = tx._connection  # type: ignore[attr-defined]
        rows = connection.exec_driver_sql(
            "SELECT (SELECT coalesce(sum(length(body) + length(subject) + 24), 0) FROM events)"
            " + (SELECT coalesce(sum(length(body)), 0) FROM event_archives)"
        )
        return int(rows.scalar())

    return await store.read(work)


def show(what: str, seconds: float, of: float | None = None) -> None:
    ratio = f", 1 : {of / seconds:.0f}" if of and seconds < of else f", {seconds / of:.2f} : 1" if of else ""
    print(f"{what}: {seconds:.3f} s{ratio}; load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=100)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="neocloud-bench-") as folder:
        asyncio.run(measure(Path(folder), options.events, options.nodes))


if __name__ == "__main__":
    main()
