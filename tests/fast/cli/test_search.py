"""Names of several kinds, found with one call of the search: `neo ssh`, completion, pages; and without it."""

from collections.abc import Callable
from typing import Any

import pytest
import typer

from neocloud.cli.commands import instance, overview
from neocloud.cli.commands.slurm import login
from neocloud.cli.main import Choice
from neocloud.cli.resources.lookup import CLUSTERS, INSTANCES, names_of
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FIND, PROJECT, FakeServer, found_resource, serve_search

INSTANCE, CLUSTER = "nebius.compute.v1.Instance", "neocloud.slurm.v1.Cluster"
WEB, LAB = "computeinstance-e00web", "slurmcluster-e00lab"
RESOURCES = (
    found_resource(INSTANCE, WEB, "web"),
    found_resource(CLUSTER, LAB, "lab"),
    found_resource(INSTANCE, "computeinstance-e00both", "both"),
    found_resource(CLUSTER, "slurmcluster-e00both", "both"),
    found_resource("nebius.compute.v1.Disk", "computedisk-e00web", "web"),
    found_resource(INSTANCE, "computeinstance-e00other", "webx", "project-e00other"),
)


@pytest.fixture
def searched(cloud: FakeServer) -> FakeServer:
    serve_search(cloud, *RESOURCES)
    return cloud


def paths(cloud: FakeServer) -> list[str]:
    return [path for path, _, _ in cloud.requests if "TokenExchange" not in path]


def test_ssh_asks_once_for_both_kinds(
    signed_in: Neo, searched: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(instance, "ssh", lambda context, name, *_, **__: called.append(f"machine {name}"))
    monkeypatch.setattr(login, "ssh", lambda context, name, *_, **__: called.append(f"cluster {name}"))
    for name in ("web", "lab", WEB, LAB):
        assert signed_in("ssh", name).code == 0
    assert called == ["machine web", "cluster lab", f"machine {WEB}", f"cluster {LAB}"]
    assert paths(searched) == [FIND] * 4
    asked = searched.asked(FIND)
    assert [list(request.kinds) for request in asked] == [[INSTANCE, CLUSTER]] * 4
    assert [(request.name, list(request.parent_ids)) for request in asked[:2]] == [
        ("web", [PROJECT]),
        ("lab", [PROJECT]),
    ]
    assert [list(request.ids) for request in asked[2:]] == [[WEB], [LAB]]
    both = signed_in("ssh", "both")
    assert both.code != 0 and "Both a machine and a Slurm cluster are named 'both'" in both.err


def test_a_name_that_nothing_has_is_not_asked_for_kind_by_kind(signed_in: Neo, searched: FakeServer) -> None:
    for name in ("lost", "computeinstance-e00lost"):
        ran = signed_in("ssh", name)
        assert ran.code == 3
        assert ran.err.endswith("There are: both, lab, web.\n")
    assert paths(searched) == [FIND] * 4


def test_a_kind_that_the_caller_may_not_read_says_so(signed_in: Neo, cloud: FakeServer) -> None:
    serve_search(cloud, *RESOURCES, unreadable_kinds=[INSTANCE])
    refusal = contract.permission_denied("compute.instances.get", PROJECT, "You need compute.viewer.")

    def refuse(request: Any) -> Any:
        raise refusal

    cloud.serve(f"{INSTANCES}/GetByName", refuse)
    lost = signed_in("ssh", "lost")
    assert (
        lost.code == 3 and "It may be of a kind that you may not read: You need compute.viewer." in lost.err
    )
    assert paths(cloud) == [FIND, f"{INSTANCES}/GetByName"]
    serve_search(cloud, unreadable_kinds=[INSTANCE, CLUSTER])
    cloud.serve(f"{CLUSTERS}/GetByName", refuse)
    refused = signed_in("ssh", "lab")
    assert refused.code != 3 and "You need compute.viewer." in refused.err


def test_an_error_of_the_search_is_told(signed_in: Neo, cloud: FakeServer) -> None:
    def fail(request: Any) -> Any:
        raise contract.internal("r1")

    cloud.serve(FIND, fail)
    ran = signed_in("ssh", "web")
    assert ran.code != 0 and "r1" in ran.err
    assert f"{INSTANCES}/GetByName" not in paths(cloud)


def test_names_are_completed_with_one_call(signed_in: Neo, searched: FakeServer) -> None:
    context = typer.Context(typer.main.get_command(overview.ssh_app), obj=Choice())
    complete: Callable[..., list[str]] = names_of(INSTANCES, CLUSTERS)
    assert complete(context, "") == ["web", "lab", "both"], "each name once"
    assert complete(context, "we") == ["web"]
    assert paths(searched) == [FIND] * 2
    assert searched.asked(FIND)[1].name_prefix == "we"


def test_a_page_asks_once_for_the_names_of_what_it_refers_to(signed_in: Neo, cloud: FakeServer) -> None:
    get = "nebius.vpc.v1.SubnetService/Get"
    serve_search(cloud, found_resource("nebius.vpc.v1.Network", "vpcnetwork-e00abc", "office"))
    found = {
        "metadata": {"id": "vpcsubnet-e00abc", "name": "lab", "parent_id": "project-e00none"},
        "spec": {"network_id": "vpcnetwork-e00abc"},
    }
    cloud.serve(get, contract.from_dict(contract.method(get).output, found))
    ran = signed_in("vpc", "subnet", "get", "vpcsubnet-e00abc")
    assert ran.code == 0, ran.err
    assert "office (vpcnetwork-e00abc)" in ran.out and "project-e00none" in ran.out
    assert paths(cloud) == [get, FIND]
