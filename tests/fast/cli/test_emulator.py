"""`neo emulator fault`: the resource of a fault by its name or id."""

from typing import Any

import pytest

from neocloud.cli.resources.lookup import INSTANCES
from neocloud.client.faults import INJECT
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer, cluster, serve_clusters

ID = "computeinstance-e00web"
OTHER_KIND = "inferencedeployment-e00bank"


@pytest.fixture
def emulator(cloud: FakeServer) -> FakeServer:
    """An emulator with the machine `web-server` and the Slurm cluster `lab-one`."""

    def by_name(request: Any) -> Any:
        if request.name != "web-server":
            raise contract.not_found("instance", request.name)
        made = contract.message("nebius.compute.v1.Instance")()
        made.metadata.id = ID
        return made

    cloud.serve(f"{INSTANCES}/GetByName", by_name)
    serve_clusters(cloud, cluster("lab-one"))
    cloud.serve(INJECT, lambda request: contract.method(INJECT).output(spec=request.spec))
    return cloud


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("web-server", ID),
        ("lab-one", "slurmcluster-e00lab-one"),
        (ID, ID),
        ("slurmcluster-e00lab-one", "slurmcluster-e00lab-one"),
        (OTHER_KIND, OTHER_KIND),
    ],
)
def test_the_resource_of_a_fault_is_given_by_name_or_id(
    signed_in: Neo, emulator: FakeServer, named: str, expected: str
) -> None:
    """Names with a hyphen may have the form of ids."""
    ran = signed_in("emulator", "fault", "inject", "preemption", "--resource", named)
    assert ran.code == 0, ran.err
    [request] = emulator.asked(INJECT)
    assert request.spec.resource_id == expected


def test_a_name_of_nothing_is_refused(signed_in: Neo, emulator: FakeServer) -> None:
    ran = signed_in("emulator", "fault", "inject", "preemption", "--resource", "web-lost")
    assert ran.code == 3 and "There is no machine and no Slurm cluster 'web-lost'" in ran.err
