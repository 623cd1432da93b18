"""Two servers on one PostgreSQL: the breaker over all pools holds for both together."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import BrokenBarrierError
from typing import Any

import pytest
from neocloud.messages.neocloud.fleet.v1 import NodePool, NodePoolSpec

from neocloud.core.store import LogEvent, Resource, Store, Transaction, open_store
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import encode
from neocloud.fleet.nodes.events import Event, Phase, Status
from neocloud.fleet.policy.actions import Suite
from neocloud.services.fleet.logs.fleet_breaker import SMALLEST_LIMIT
from neocloud.services.fleet.logs.node_logs import NodeLogs, PoolLog
from neocloud.services.fleet.reconcile import NodePoolScope, PoolReconciler
from neocloud.services.fleet.types import Check
from neocloud.services.slurm.public import NODE_POOL
from neocloud.testing.postgres import running_postgres
from neocloud.testing.waiting import FakeClock

KEY = bytes(32)
POOLS = ("pool-a", "pool-b", "pool-c")
TOGETHER_SECONDS = 20.0
_processes = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres() as address:
        yield address


@dataclass
class Context:
    """The part of the reconciler's context that it uses here; the lease of each pool is held by one server
    alone.
    """

    store: Store

    async def append_events(self, log: str, events: list[LogEvent], claim: Any = None) -> None:
        def append(tx: Transaction) -> None:
            if claim is not None:
                claim(tx)
            for event in events:
                tx.append_event(log, event)

        await self.store.write(append)


class TogetherLogs(NodeLogs):
    """Reads all pools for the first time when the other server has read them, too."""

    barrier: Any = None

    async def read_all(self) -> Any:
        found = await super().read_all()
        barrier, self.barrier = self.barrier, None
        if barrier is not None:
            with suppress(BrokenBarrierError):
                await asyncio.to_thread(barrier.wait, TOGETHER_SECONDS)
        return found


async def decide(store: Store, logs: NodeLogs, clock: FakeClock, pool_id: str) -> dict[str, str]:
    reconciler: Any = PoolReconciler.__new__(PoolReconciler)
    vars(reconciler).update(_clock=clock, _store=store, _logs=logs)
    spec = NodePoolSpec(cluster_id=pool_id, node_set="w", wanted=4)
    scope = NodePoolScope(Context(store), NodePool(spec=spec))  # type: ignore[arg-type]
    scope.pool.metadata.id = pool_id
    scope.log = await logs.read(pool_id, 4)
    await reconciler._decide(scope)
    return scope.held


def _server(address: str, pool_id: str, barrier: Any, answers: Any) -> None:
    async def run() -> dict[str, str]:
        clock = FakeClock()
        store = await open_store(address, KEY, clock)
        logs = TogetherLogs(store)
        logs.barrier = barrier
        held = await decide(store, logs, clock, pool_id)
        await store.close()
        return held

    answers.put((pool_id, asyncio.run(run())))


def failing(pool_id: str, now: float) -> list[Event]:
    """Four nodes in service whose memory is too small now."""
    found: list[Event] = []
    for number in range(4):
        node = f"{pool_id}-{number}"
        found += [
            e.Registered(now - 90, node, "", f"l{number}", Phase.DRAINED),
            e.Booted(now - 90, node, "b"),
            e.VerificationStarted(now - 80, node, Suite.FULL, 1, now),
            e.VerificationEnded(now - 70, node, 1, passed=True, valid_until=now + 1e6),
            e.SpareReserved(now - 60, node),
            e.Attached(now - 50, node),
            e.Returned(now - 40, node),
            e.Verdict(now - 1, node, f"v-{node}", Check.MEMORY.value, Status.FAIL, "b", "1", "2", "s", "1"),
        ]
    return found


async def drains(store: Store) -> int:
    logs: list[PoolLog] = [await NodeLogs(store).read(pool_id) for pool_id in POOLS]
    return sum(len(log.drains.times) for log in logs)


async def test_two_servers_that_decide_in_one_instant_keep_the_limit_together(postgres: str) -> None:
    clock = FakeClock()
    store = await open_store(postgres, KEY, clock)

    def write(tx: Transaction) -> None:
        for pool_id in POOLS:
            now = clock.now()
            spec = NodePoolSpec(cluster_id=pool_id, node_set="w", wanted=4).SerializeToString()
            tx.insert(Resource(pool_id, NODE_POOL, "", pool_id, now, now, spec=spec))
            for each in failing(pool_id, now.timestamp()):
                tx.append_event(
                    pool_id, LogEvent(each.node, datetime.fromtimestamp(each.at, UTC), encode(each))
                )

    await store.write(write)
    await decide(store, NodeLogs(store), clock, POOLS[0])
    assert await drains(store) == 2, "there is room for two more, and each of the two servers sees it"
    barrier, answers = _processes.Barrier(2), _processes.Queue()
    servers = [
        _processes.Process(target=_server, args=(postgres, pool_id, barrier, answers))
        for pool_id in POOLS[1:]
    ]
    for each in servers:
        each.start()
    held = dict([await asyncio.to_thread(answers.get, timeout=60) for _ in servers])
    for each in servers:
        each.join(20)
    assert [each.exitcode for each in servers] == [0, 0]
    assert not barrier.broken, "both had read the room before either decided"
    assert await drains(store) == SMALLEST_LIMIT
    assert sorted(len([why for why in found.values() if "fleet" in why]) for found in held.values()) == [0, 2]
    await store.close()
