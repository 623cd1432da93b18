"""A million steps of the random walk, each checked by a model that is apart from the fold. HEALTH-05."""

import pytest

from tests.fast.fleet.control.walk import Walk

STEPS = 1_000_000


@pytest.mark.timeout(3600)
def test_a_walk_of_a_million_steps_keeps_every_promise() -> None:
    walk = Walk(1)
    for _ in range(STEPS):
        walk.step()
    walk.check_replay()
    assert walk.drained_ever > 5_000 and walk.served_steps > STEPS
