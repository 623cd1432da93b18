import pytest
from google.protobuf import timestamp_pb2

from neocloud.core import contract


def test_published_and_own_services_are_in_one_contract() -> None:
    services = contract.services()
    assert "nebius.compute.v1.FilesystemService" in services
    assert "neocloud.slurm.v1.ClusterService" in services
    published = [name for name in services if name.startswith("nebius.")]
    assert len(published) == 90
    assert sum(len(services[name]) for name in published) == 483


def test_a_method_knows_its_request_and_its_answer() -> None:
    rpc = contract.method("/neocloud.slurm.v1.ClusterService/Create")
    assert rpc == contract.method("neocloud.slurm.v1.ClusterService/Create")
    assert (rpc.service, rpc.name) == ("neocloud.slurm.v1.ClusterService", "Create")
    assert rpc.input is contract.message("neocloud.slurm.v1.CreateClusterRequest")
    assert rpc.output is contract.message("nebius.common.v1.Operation")


@pytest.mark.parametrize(
    "look_up",
    [
        lambda: contract.message("nebius.compute.v1.Nothing"),
        lambda: contract.enum("nebius.compute.v1.Nothing"),
        lambda: contract.method("nebius.compute.v1.DiskService/Nothing"),
    ],
)
def test_an_unknown_name_is_a_lookup_error(look_up) -> None:
    with pytest.raises(LookupError, match="Nothing"):
        look_up()


def test_enum_names_and_numbers_go_both_ways() -> None:
    states = contract.enum("neocloud.slurm.v1.ClusterStatus.State")
    assert states.Name(2) == "READY"
    assert states.Value("READY") == 2


def test_the_pool_is_private() -> None:
    """Stock classes of other libraries in the process are other types, so nothing can clash."""
    assert contract.message("google.protobuf.Timestamp") is not timestamp_pb2.Timestamp
