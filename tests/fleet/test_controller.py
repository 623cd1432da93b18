"""The controller: random walks that keep its promises, breakers, correlation and the ladder. HEALTH-05."""

import pytest

from neocloud.fleet import events as e
from tests.fleet.walk import Walk


@pytest.mark.parametrize("seed", range(3))
def test_a_random_walk_keeps_every_promise(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(1500):
        walk.step()
    walk.check_replay()
    assert walk.drained_ever > 10, "it drained nodes"
    assert walk.served_steps > 1500, "nodes were in service"
    assert any(isinstance(event, e.StepStarted) for event in walk.log)
