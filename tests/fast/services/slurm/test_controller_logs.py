"""A line of a controller's log wakes its cluster and its pools at once, and many lines no more often."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from neocloud.core.reconcile.wakes import Wakes
from neocloud.engines.base import Reference
from neocloud.engines.fake import FakeEngine
from neocloud.engines.manifest import Container, Namespace, Pod
from neocloud.services.slurm.controller_logs import CLUSTER_SECONDS, POOL_SECONDS, ControllerLogs
from neocloud.testing.waiting import FakeClock

CLUSTER, POOL = "slurmcluster-1", "nodepool-1"
CONTROLLER = Reference("Pod", CLUSTER, "controller-0")


@dataclass
class Followed:
    engine: FakeEngine
    clock: FakeClock
    logs: ControllerLogs
    woken: Counter[str] = field(default_factory=Counter)

    async def write(self, line: str = "slurmctld: update_node: node worker-0 state set to DRAIN") -> None:
        self.engine.write_log(CONTROLLER, "controller", line)
        await self.clock.settle()


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    clock, wakes = FakeClock(), Wakes()
    engine = FakeEngine(clock=clock)
    pod = Pod(
        name=CONTROLLER.name, namespace=CLUSTER, containers=(Container(name="controller", image="slurm"),)
    )
    await engine.apply([Namespace(name=CLUSTER), pod])
    found = Followed(engine, clock, ControllerLogs(engine, clock, wakes))
    wakes.bind(lambda resource_id: found.woken.update([resource_id]))
    found.logs.follow(CLUSTER, [CONTROLLER], [POOL])
    await clock.settle()
    yield found
    found.logs.forget(CLUSTER)
    await engine.close()


async def test_a_line_wakes_the_cluster_and_its_pools_at_once(followed: Followed) -> None:
    await followed.clock.advance(3600)
    assert not followed.woken, "nothing is woken while nothing is written"
    await followed.write()
    assert followed.woken == {CLUSTER: 1, POOL: 1}


async def test_lines_without_end_wake_no_more_often_than_asking_all_the_time_did(followed: Followed) -> None:
    for _ in range(1200):
        await followed.write("slurmctld: error: a user of the cluster has this written")
        await followed.clock.advance(0.1)
    assert followed.woken[CLUSTER] <= 120 / CLUSTER_SECONDS + 1
    assert followed.woken[POOL] <= 120 / POOL_SECONDS + 1


async def test_what_is_written_between_two_wakes_is_not_lost(followed: Followed) -> None:
    await followed.write()
    await followed.clock.advance(1)
    await followed.write()
    assert followed.woken == {CLUSTER: 1, POOL: 1}
    await followed.clock.advance(CLUSTER_SECONDS)
    assert followed.woken == {CLUSTER: 2, POOL: 2}


async def test_a_controller_that_was_started_again_is_followed_again(followed: Followed) -> None:
    await followed.engine.restart(CONTROLLER)
    await followed.clock.settle()
    await followed.clock.advance(60)
    before = followed.woken[POOL]
    followed.logs.follow(CLUSTER, [CONTROLLER], [POOL, "nodepool-2"])
    await followed.clock.settle()
    await followed.clock.advance(60)
    await followed.write()
    assert followed.woken[POOL] > before and followed.woken["nodepool-2"] >= 1


async def test_the_end_of_a_controller_is_told_once_and_its_absence_is_no_error(followed: Followed) -> None:
    await followed.engine.remove([CONTROLLER])
    await followed.clock.settle()
    assert followed.woken == {CLUSTER: 1, POOL: 1}
    followed.logs.follow(CLUSTER, [CONTROLLER], [POOL])
    await followed.clock.advance(3600)
    assert followed.woken == {CLUSTER: 1, POOL: 1}


async def test_a_forgotten_cluster_is_woken_no_more(followed: Followed) -> None:
    followed.logs.forget(CLUSTER)
    await followed.clock.settle()
    await followed.write()
    assert not followed.woken
