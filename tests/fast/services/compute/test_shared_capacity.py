"""Machines and the workers of Slurm clusters share one machine: CMP-01, SLURM-02."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.messages.nebius.compute.v1 import InstanceSpec
from neocloud.messages.neocloud.slurm.v1 import ClusterSpec

from neocloud.core import contract
from neocloud.core.contract import ApiError
from neocloud.core.readers import ServiceRegistry
from neocloud.core.store.protocol import Resource
from neocloud.core.usage import CapacityUses
from neocloud.engines.base import Capabilities
from neocloud.services.compute.catalogue import Preset
from neocloud.services.compute.public import check_capacity, instance_demands, preset
from neocloud.services.compute.rules.instance import CAPACITY as INSTANCES
from neocloud.services.compute.types import INSTANCE
from neocloud.services.slurm.rules import CAPACITY as CLUSTERS
from neocloud.services.slurm.rules import cluster_demands
from neocloud.services.slurm.types import CLUSTER

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GIB_4 = preset("cpu-local", "1vcpu-4gb")
ME = "computeinstance-e00me"


@dataclass
class Reader:
    """A machine of 8 GiB, and the resources on it."""

    rows: list[Resource] = field(default_factory=list)
    inventory: Any = field(default_factory=lambda: Capabilities("fake", "1", cpus=8, memory_mib=8 * 1024))

    provided: ServiceRegistry = field(
        default_factory=lambda: ServiceRegistry().add(CapacityUses, CapacityUses((*INSTANCES, *CLUSTERS)))
    )

    def list(self, kind: str, parent_id: str | None = None) -> list[Resource]:
        return [row for row in self.rows if row.kind == kind]


def machine(state: str = "RUNNING", *, stopped: bool = False) -> Resource:
    shape = {"platform": "cpu-local", "preset": "1vcpu-4gb"}
    spec = contract.from_dict(InstanceSpec, {"resources": shape, "stopped": stopped})
    content = spec.SerializeToString()
    return Resource("computeinstance-e00a", INSTANCE, "project-e00", "a", NOW, NOW, spec=content, state=state)


def cluster(workers: int) -> Resource:
    node_set = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": workers}
    content = contract.from_dict(ClusterSpec, {"node_sets": [node_set]}).SerializeToString()
    return Resource("slurmcluster-e00b", CLUSTER, "project-e00", "b", NOW, NOW, spec=content)


def reader(rows: list[Resource] | None = None, **changes: Any) -> Any:
    """Return the part of a ResourceReader that capacity needs."""
    return Reader(rows or [], **changes)


def metadata(resource_id: str, project_id: str = "project-e00") -> ResourceMetadata:
    return ResourceMetadata(id=resource_id, parent_id=project_id)


def fits(*rows: Resource, wanted: int = 1, held: int = 0, me: str = ME) -> bool:
    try:
        check_capacity(reader(list(rows)), metadata(me), [(GIB_4, wanted)], [(GIB_4, held)] if held else [])
    except ApiError as error:
        assert "Free: " in error.message and "You asked for" in error.message
        return False
    return True


def test_machines_and_clusters_are_counted_together() -> None:
    assert fits(wanted=2)
    assert fits(machine()) and fits(cluster(1))
    assert not fits(machine(), cluster(1))


def test_the_resource_itself_is_not_counted_twice() -> None:
    assert fits(cluster(1), wanted=2, held=1, me=cluster(1).id)


@pytest.mark.parametrize("row", [machine("STOPPED"), machine("ERROR"), machine(stopped=True)])
def test_a_machine_that_does_not_run_holds_nothing(row: Resource) -> None:
    assert fits(row, wanted=2)


def test_becoming_smaller_is_possible_also_where_too_much_was_promised() -> None:
    assert fits(cluster(5), wanted=1, held=2)
    assert not fits(cluster(5), wanted=2, held=1)


def test_what_is_asked_for_follows_from_the_spec() -> None:
    assert cluster_demands(ClusterSpec.FromString(cluster(3).spec)) == [(GIB_4, 3)]
    assert cluster_demands(ClusterSpec.FromString(cluster(0).spec)) == []
    assert instance_demands(InstanceSpec.FromString(machine().spec)) == [(GIB_4, 1)]
    assert instance_demands(InstanceSpec.FromString(machine(stopped=True).spec)) == []


def test_an_unknown_machine_is_left_to_the_engine() -> None:
    check_capacity(reader(inventory=None), metadata(ME), [(GIB_4, 1000)], [])


def refusal(project_id: str) -> str:
    with pytest.raises(ApiError) as caught:
        check_capacity(reader([machine(), cluster(1)]), metadata(ME, project_id), [(GIB_4, 1)], [])
    return caught.value.message


def test_a_refusal_says_what_is_free_what_fits_and_who_of_ones_own_project_has_the_rest() -> None:
    assert refusal("project-e00") == (
        "This machine cannot hold 1 x cpu-local 1vcpu-4gb in addition. Free: 7.5 cores (30 vCPU of"
        " cpu-local), 0 GiB. You asked for 1 vCPU, 4 GiB. Nothing of cpu-local fits:"
        " stop or delete something first."
        " In use: Slurm cluster b (0.25 cores, 4 GiB), instance a (0.25 cores, 4 GiB)."
    )


def test_a_refusal_does_not_say_what_or_how_much_other_projects_run() -> None:
    message = refusal("project-e00other")
    assert message.endswith("In use: what other projects run.")
    assert "cluster b" not in message and "8 GiB" not in message


def test_a_refusal_says_how_many_fit_or_which_smaller_preset() -> None:
    def message(wanted: Preset, count: int) -> str:
        with pytest.raises(ApiError) as caught:
            check_capacity(reader([machine()]), metadata(ME), [(wanted, count)], [])
        return caught.value.message

    assert "Free: 7.75 cores (31 vCPU of cpu-local), 4 GiB. You asked for 3 vCPU, 12 GiB." in message(
        GIB_4, 3
    )
    assert "What fits: 1 x cpu-local 1vcpu-4gb." in message(GIB_4, 3)
    larger = preset("cpu-local", "4vcpu-16gb")
    assert "The largest that fits: cpu-local " in message(larger, 1) and "4gb." in message(larger, 1)
