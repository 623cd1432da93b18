"""The estimated units of a request are what the meters find once the resource is there. BILL-01."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from neocloud.core import contract
from neocloud.core.store.protocol import HistoryEntry
from neocloud.services import ai, compute, slurm, tuning
from neocloud.services.billing.rules.held import NoEstimate, units

START = datetime(2026, 11, 29, tzinfo=UTC)
NODES = [{"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 4}]
SHAPE = {"platform": "cpu-d3", "preset": "4vcpu-16gb"}
DISK = {"type": "NETWORK_SSD", "size_bytes": str(10 * 1024**3)}


def request(message: str, spec: dict[str, Any]) -> Any:
    return contract.from_dict(contract.message(message), {"spec": spec})


@pytest.mark.parametrize(
    ("service", "message", "state", "spec"),
    [
        (slurm, "neocloud.slurm.v1.CreateClusterRequest", "READY", {"node_sets": NODES}),
        (ai, "nebius.ai.v1.CreateEndpointRequest", "RUNNING", {**SHAPE, "disk": DISK}),
        (ai, "nebius.ai.v1.CreateJobRequest", "RUNNING", {**SHAPE, "disk": DISK, "preemptible": True}),
        (tuning, "neocloud.tuning.v1.CreateFineTuningJobRequest", "RUNNING", SHAPE),
        (
            compute,
            "nebius.compute.v1.CreateDiskRequest",
            "READY",
            {"type": "NETWORK_SSD", "size_gibibytes": "20"},
        ),
        (
            compute,
            "nebius.compute.v1.CreateFilesystemRequest",
            "READY",
            {"type": "NETWORK_SSD", "size_gibibytes": "7"},
        ),
        (compute, "nebius.compute.v1.CreateInstanceRequest", "RUNNING", {"resources": SHAPE}),
    ],
)
def test_the_estimate_is_of_what_the_meter_finds(
    service: Any, message: str, state: str, spec: dict[str, Any]
) -> None:
    wanted = request(message, spec)
    package, _, name = message.rpartition(".")
    kind = f"{package}.{name.removeprefix('Create').removesuffix('Request')}"
    [meter] = [each for each in service.SERVICE.meters if kind in each.kinds]
    entry = HistoryEntry(
        resource_id="x-e00one", kind=kind, parent_id="project-e00a", name="x", state=state,
        spec=wanted.spec.SerializeToString(), at=START, resource_version=1,
    )  # fmt: skip
    found: dict[str, int] = {}
    for record in meter([entry], START, START + timedelta(hours=1)):
        found[record.sku] = found.get(record.sku, 0) + record.units
    assert found and units(wanted) == found


def test_a_cluster_has_its_shared_root_and_the_elastic_workers_that_stay() -> None:
    elastic = {**NODES[0], "count": 8, "elastic": {"min_count": 1}}
    held = units(
        request(
            "neocloud.slurm.v1.CreateClusterRequest",
            {"node_sets": [elastic], "shared_root": {"size_gibibytes": "64"}},
        )
    )
    assert held == {"cpu-local.vcpu": 1, "cpu-local.ram": 4, "filesystem.network-ssd": 64}


def test_a_job_on_a_cluster_costs_nothing_more() -> None:
    assert (
        units(
            request(
                "neocloud.tuning.v1.CreateFineTuningJobRequest", {"slurm_cluster_id": "slurmcluster-e00a"}
            )
        )
        == {}
    )


def test_a_deployment_by_the_hour_costs_its_fewest_replicas() -> None:
    by_hour = {**SHAPE, "charge": "BY_HOUR", "scaling": {"min_replicas": 2, "max_replicas": 4}}
    assert units(request("neocloud.inference.v1.CreateDeploymentRequest", by_hour)) == {
        "cpu-d3.vcpu": 8,
        "cpu-d3.ram": 32,
    }


@pytest.mark.parametrize(
    ("message", "spec", "why"),
    [
        ("neocloud.inference.v1.CreateDeploymentRequest", {**SHAPE, "charge": "BY_TOKEN"}, "by the token"),
        ("neocloud.slurm.v1.CreateClusterRequest", {"node_sets": [{**NODES[0], "preset": "no"}]}, "no"),
        ("nebius.ai.v1.CreateJobRequest", {"platform": "nowhere"}, "nowhere"),
        ("nebius.vpc.v1.CreateNetworkRequest", {}, "no price by the hour"),
    ],
)
def test_what_has_no_price_says_why(message: str, spec: dict[str, Any], why: str) -> None:
    with pytest.raises(NoEstimate) as caught:
        units(request(message, spec))
    assert why in str(caught.value)
