"""NodesAvailable counts workers that take jobs: not those that the fleet controller keeps them from."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from neocloud.messages.neocloud.slurm.v1 import Cluster

from neocloud.core.reconcile.reconciler import ReconcileResult
from neocloud.services.slurm.reconcile.status import _conditions
from neocloud.services.slurm.slurm_records import SlurmNode
from neocloud.services.slurm.types import ClusterState


def node(name: str, reason: str = "", *states: str) -> SlurmNode:
    return SlurmNode(name, frozenset(states or {"IDLE"}), reason, "", datetime.fromtimestamp(0, UTC), 0)


def condition(*nodes: SlurmNode, spares: int = 0) -> tuple[str, str]:
    cluster = Cluster()
    cluster.spec.node_sets.add(name="worker", count=len(nodes), spare_count=spares)
    scope: Any = SimpleNamespace(
        cluster=cluster,
        workers={each.name: "worker" for each in nodes},
        nodes={each.name: each for each in nodes},
        powering_up=frozenset(),
        **dict.fromkeys(("absent", "elastic", "closed_addresses"), ()),
        **dict.fromkeys(("left_out", "storage_problem", "no_host", "start_failure"), ""),
    )
    scope.workers, scope.elastic = dict(scope.workers), frozenset()
    found = _conditions(scope, ReconcileResult(), ClusterState.READY)
    (available,) = [each for each in found if each.type == "NodesAvailable"]
    return available.status, available.message


@pytest.mark.parametrize("reason", ["neocloud: not verified yet", "neocloud: spare", "neocloud: lost: x"])
def test_a_worker_that_is_kept_from_jobs_does_not_count(reason: str) -> None:
    """FI-30: a new worker is drained until it is verified."""
    status, message = condition(node("worker-0", reason, "IDLE", "DRAIN"))
    assert status == "False"
    assert message == f"0 of 1 workers can run jobs; worker-0: {reason.removeprefix('neocloud: ')}"


def test_spares_are_not_missing_where_they_were_asked_for() -> None:
    spare = node("worker-1", "neocloud: spare", "IDLE", "DRAIN")
    assert condition(node("worker-0"), spare, spares=1) == (
        "True",
        "1 of 2 workers can run jobs; worker-1: spare",
    )
    assert condition(node("worker-0"), spare)[0] == "False"


def test_what_an_administrator_drained_counts_as_before() -> None:
    assert condition(node("worker-0", "cable", "IDLE", "DRAIN")) == ("True", "1 of 1 workers can run jobs")
    assert condition(node("worker-0", "", "DOWN")) == ("False", "0 of 1 workers can run jobs")
