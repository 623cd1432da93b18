"""The loops of the fleet run ten times as often as in a cloud, since a fake Slurm answers at once."""

import pytest

from neocloud.services.fleet import node_agents, reconcile, sources

PERIODS = (
    (reconcile, "WATCH_SECONDS"),
    (reconcile, "UNSETTLED_SECONDS"),
    (node_agents, "ASK_AGAIN"),
    (sources, "MEASURE_AGAIN"),
)


@pytest.fixture(autouse=True)
def frequent_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in PERIODS:
        monkeypatch.setattr(module, name, getattr(module, name) / 10)
