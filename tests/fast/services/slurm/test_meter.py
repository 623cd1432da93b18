"""Node-hours come from the cluster's history, in whole seconds."""

from datetime import UTC, datetime, timedelta

from neocloud.messages.neocloud.slurm.v1 import ClusterSpec

from neocloud.core.store.protocol import HistoryEntry
from neocloud.services.slurm import ClusterMeter
from neocloud.services.slurm.types import CLUSTER, ClusterState

START = datetime(2026, 11, 1, 12, tzinfo=UTC)
END = START + timedelta(days=1)


def entry(minutes: float, state: ClusterState, count: int, *, is_deleted: bool = False) -> HistoryEntry:
    spec = ClusterSpec()
    spec.node_sets.add(name="worker", platform="cpu-local", preset="1vcpu-4gb", count=count)
    return HistoryEntry(
        resource_id="slurmcluster-e00bank",
        kind=CLUSTER,
        parent_id="project-e00one",
        name="bank",
        at=START + timedelta(minutes=minutes),
        state=state,
        resource_version=1,
        spec=spec.SerializeToString(),
        is_deleted=is_deleted,
    )


def unit_seconds(history, start=START, end=END) -> dict[str, int]:
    total: dict[str, int] = {}
    for record in ClusterMeter()(history, start, end):
        total[record.sku] = total.get(record.sku, 0) + record.unit_seconds
    return total


def test_a_cluster_costs_nothing_until_it_is_ready():
    history = [
        entry(0, ClusterState.CREATING, 2),
        entry(10, ClusterState.READY, 2),
        entry(20, ClusterState.DELETING, 2),
    ]
    assert unit_seconds(history) == {"cpu-local.vcpu": 2 * 600, "cpu-local.ram": 8 * 600}


def test_a_deleted_cluster_stops_costing():
    history = [
        entry(0, ClusterState.READY, 1),
        entry(10, ClusterState.DELETING, 1),
        entry(11, ClusterState.DELETING, 1, is_deleted=True),
    ]
    assert unit_seconds(history)["cpu-local.vcpu"] == 600


def test_a_cluster_of_a_stopped_cloud_costs_nothing():
    history = [
        entry(0, ClusterState.READY, 1),
        entry(10, ClusterState.STOPPED, 1),
        entry(50, ClusterState.READY, 1),
    ]
    assert unit_seconds(history, START, START + timedelta(hours=1))["cpu-local.vcpu"] == 1200


def test_a_smaller_node_set_costs_less_from_then_on():
    history = [
        entry(0, ClusterState.READY, 2),
        entry(30, ClusterState.UPDATING, 1),
        entry(60, ClusterState.DELETING, 1),
    ]
    assert unit_seconds(history)["cpu-local.vcpu"] == 2 * 1800 + 1 * 1800


def test_a_cluster_without_workers_costs_nothing():
    assert unit_seconds([entry(0, ClusterState.READY, 0)]) == {}


def test_parts_of_a_day_add_up_to_the_day():
    history = [entry(0, ClusterState.READY, 2), entry(100, ClusterState.DELETING, 2)]
    middle = START + timedelta(minutes=37)
    first, second = unit_seconds(history, START, middle), unit_seconds(history, middle, END)
    assert first["cpu-local.vcpu"] + second["cpu-local.vcpu"] == unit_seconds(history)["cpu-local.vcpu"]
