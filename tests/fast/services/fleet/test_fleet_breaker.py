"""One breaker over all pools: losses that no cluster sees as many are seen together."""

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from neocloud.engines.base import Reference
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import OURS
from neocloud.fleet.policy.limits import MINUTE, Limits
from neocloud.services.fleet.logs.fleet_breaker import (
    MOST_DRAINS,
    OPEN,
    SMALLEST_LIMIT,
    DrainTimes,
    room,
    within_room,
)
from neocloud.services.fleet.types import LIMITS
from neocloud.testing.waiting import until
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud

NODES = "neocloud.fleet.v1.NodeService"


def pools(*times: list[float]) -> list[DrainTimes]:
    found = [DrainTimes.of(LIMITS) for _ in times]
    for pool, each in zip(found, times, strict=True):
        for at in each:
            pool.add(at)
    return found


def test_drains_of_all_pools_count_together() -> None:
    one_each = pools([1000.0], [1001.0], [1002.0])
    assert room(one_each, 30, LIMITS, 1003.0).drains == 1
    full = pools([1000.0], [1001.0], [1002.0], [1003.0])
    assert room(full, 30, LIMITS, 1004.0).drains == 0
    assert room(full, 200, LIMITS, 1004.0).drains == 6, "5% of 200, less four"


def test_after_the_cool_down_one_drain_is_a_canary() -> None:
    full = pools([1000.0, 1001.0], [1002.0, 1003.0])
    assert room(full, 30, LIMITS, 1003.0 + LIMITS.cool_down - 1).drains == 0
    later = 1003.0 + LIMITS.cool_down
    assert room(full, 30, LIMITS, later).drains == 1
    full[0].add(later)
    assert room(full, 30, LIMITS, later + 1).drains == 0, "the window is as full as before"
    assert room(full, 30, LIMITS, later + LIMITS.window).drains == SMALLEST_LIMIT


@pytest.mark.parametrize("seed", range(5))
def test_no_window_has_more_drains_than_the_limit_and_its_canaries(seed: int) -> None:
    draw, now = random.Random(seed), 0.0
    found, taken = pools(*[[] for _ in range(7)]), list[float]()
    limits = Limits(window=10 * MINUTE, cool_down=5 * MINUTE)
    for _ in range(3000):
        now += draw.expovariate(1 / 20)
        for _ in range(min(draw.randrange(4), room(found, 60, limits, now).drains)):
            draw.choice(found).add(now)
            taken.append(now)
    most = max(sum(1 for at in taken if end - limits.window < at <= end) for end in taken)
    assert SMALLEST_LIMIT <= most <= SMALLEST_LIMIT + limits.window / limits.cool_down
    assert len(taken) > 100


def test_only_the_drains_without_room_are_held_with_their_spares() -> None:
    drains = [e.DrainRequested(1.0, f"n{number}", OURS, "v", "cpu") for number in range(3)]
    others = [e.SpareReserved(1.0, "s0", "n0"), e.SpareReserved(1.0, "s2", "n2"), e.Returned(1.0, "n9")]
    allowed, held = within_room([*drains, *others], 2)
    assert held == {"n2": OPEN} and allowed == [drains[0], drains[1], others[0], others[2]]
    assert within_room(others, 0) == (others, {})
    asked = e.DrainRequested(1.0, "n1", "operator:ann", "asked")
    assert within_room([asked], 0) == ([asked], {}), "people drain what they like"


def test_what_is_kept_of_a_pool_is_bounded() -> None:
    pool = DrainTimes.of(LIMITS)
    for number in range(5 * MOST_DRAINS):
        pool.add(1000.0 + number / 1000)
    assert len(pool.times) == MOST_DRAINS
    pool.add(10**6)
    assert pool.times == [10**6]


@pytest.fixture
async def cloud(tmp_path: Any) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path) as running:
        yield running


async def test_workers_of_three_clusters_are_not_all_drained_at_once(cloud: FakeCloud) -> None:
    clusters = [await watched(cloud, f"bank-{number}") for number in range(3)]
    for cluster in clusters:
        for number in range(2):
            cloud.engine.kill(Reference("Pod", cluster, f"worker-{number}"))

    async def held() -> list[Any]:
        found = [node for cluster in clusters for node in await nodes(cloud, cluster)]
        return [node for node in found if OPEN in node.held]

    waiting = await until(held, seconds=30, poll_seconds=0.1)
    drained = 0
    for cluster in clusters:
        for node in await nodes(cloud, cluster):
            log = await cloud.call(f"{NODES}/ListEvents", id=f"{cluster}/{node.name}", page_size=500)
            drained += any(
                '"DrainRequested"' in each.json and '"neocloud"' in each.json for each in log.items
            )
    assert waiting and drained <= SMALLEST_LIMIT


async def watched(cloud: FakeCloud, name: str) -> str:
    workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 2}
    cluster = await cloud.create("Cluster", name, {"node_sets": [workers], "auto_repair": True})
    await cloud.until(cluster, "READY")

    async def ready() -> bool:
        return [node.phase for node in await nodes(cloud, cluster)] == ["in_service"] * 2

    await until(ready, seconds=30, poll_seconds=0.1)
    return cluster


async def nodes(cloud: FakeCloud, cluster: str) -> list[Any]:
    return list((await cloud.call(f"{NODES}/List", cluster_id=cluster)).items)


def test_while_it_is_closed_it_says_until_when() -> None:
    full = pools([1000.0, 1001.0], [1002.0, 1003.0])
    found = room(full, 30, LIMITS, 1010.0)
    assert found.closed_until == 1003.0 + LIMITS.cool_down
    assert room(full, 30, LIMITS, found.closed_until).drains == 1
    assert room(full, 30, LIMITS, found.closed_until - 0.001).drains == 0
