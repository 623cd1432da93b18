"""`neo slurm cluster create` takes GPUs when the machine has any."""

from pathlib import Path
from typing import Any

import pytest

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import CLUSTERS, FakeServer
from tests.fast.cli.test_slurm_cluster import creating, key_file, platforms

__all__ = ["creating", "key_file"]

WITH_GPU, WITHOUT = ("gpu-local", "1gpu-8vcpu-32gb"), ("cpu-local", "1vcpu-4gb")
TOO_SMALL = "1vcpu-1gb"


@pytest.fixture
def local(creating: FakeServer) -> FakeServer:
    """A cloud with the platforms of ordinary machines."""
    listed = platforms(
        gpu_local=[(WITH_GPU[1], 8, 32, 1)],
        cpu_local=[(TOO_SMALL, 1, 1, 0), ("2vcpu-4gb", 2, 4, 0), (WITHOUT[1], 1, 4, 0)],
    )
    creating.serve("nebius.compute.v1.PlatformService/List", listed)
    return creating


def shapes_asked(cloud: FakeServer) -> list[tuple[str, str]]:
    node_sets = [request.spec.node_sets[0] for request in cloud.asked(f"{CLUSTERS}/Create")]
    return [(each.platform, each.preset) for each in node_sets]


def test_workers_have_gpus(signed_in: Neo, local: FakeServer, key_file: Path) -> None:
    ran = signed_in("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file))
    assert ran.code == 0, ran.err
    assert shapes_asked(local) == [WITH_GPU]


def test_workers_have_none_where_the_machine_has_too_few(
    signed_in: Neo, local: FakeServer, key_file: Path
) -> None:
    answer = local.methods[f"{CLUSTERS}/Create"]

    def create(request: Any) -> Any:
        if request.spec.node_sets[0].platform == WITH_GPU[0]:
            raise contract.not_enough_resources("compute.nodes", "2 x gpu-local", "There are no GPUs.")
        return answer(request)

    local.serve(f"{CLUSTERS}/Create", create)
    ran = signed_in("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file))
    assert ran.code == 0, ran.err
    assert shapes_asked(local) == [WITH_GPU, WITHOUT]
    assert "There are no GPUs" not in ran.out + ran.err


def test_a_small_machine_has_workers_that_it_can_hold(
    signed_in: Neo, local: FakeServer, key_file: Path
) -> None:
    answer = local.methods[f"{CLUSTERS}/Create"]

    def create(request: Any) -> Any:
        if request.spec.node_sets[0].preset != TOO_SMALL:
            raise contract.not_enough_resources("compute.nodes", "1 worker", "There is no memory.")
        return answer(request)

    local.serve(f"{CLUSTERS}/Create", create)
    ran = signed_in("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file))
    assert ran.code == 0, ran.err
    assert shapes_asked(local) == [WITH_GPU, WITHOUT, ("cpu-local", TOO_SMALL)]


def test_a_preset_that_was_named_is_not_replaced(signed_in: Neo, local: FakeServer, key_file: Path) -> None:
    words = ("slurm", "cluster", "create", "bank", "--ssh-key", str(key_file), "--preset", TOO_SMALL)
    assert signed_in(*words).code == 0
    assert shapes_asked(local) == [("cpu-local", TOO_SMALL)]
