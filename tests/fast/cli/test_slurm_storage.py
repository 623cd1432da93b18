"""`neo slurm storage`."""

import json

import pytest

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import (
    CLUSTERS,
    PROJECT,
    FakeServer,
    cluster,
    operation,
    serve_clusters,
)

SERVICE = "neocloud.slurm.v1.StorageAccessService"
KEY = {
    "user": "root",
    "uid": 0,
    "account_id": "serviceaccount-e00t",
    "expires_at": "2026-11-01T10:00:00Z",
}


@pytest.fixture
def lab(cloud: FakeServer) -> FakeServer:
    serve_clusters(cloud, cluster("bank", storage_keys=[KEY]))
    cloud.serve(f"{CLUSTERS}/Update", operation("slurmcluster-e00bank"))
    for verb in ("Allow", "Withdraw"):
        cloud.serve(f"{SERVICE}/{verb}", contract.method(f"{SERVICE}/{verb}").output())
    account = contract.message("nebius.iam.v1.ServiceAccount")(metadata={"id": "serviceaccount-e00t"})
    cloud.serve("nebius.iam.v1.ServiceAccountService/GetByName", account)
    return cloud


@pytest.mark.parametrize("verb", ["allow", "withdraw"])
@pytest.mark.parametrize("name", ["bank", "slurmcluster-e00bank"])
def test_a_person_decides_by_name_or_id(signed_in: Neo, lab: FakeServer, verb: str, name: str) -> None:
    ran = signed_in("slurm", "storage", verb, name)
    assert ran.code == 0, ran.err
    (request,) = lab.asked(f"{SERVICE}/{verb.capitalize()}")
    assert request.cluster_id == "slurmcluster-e00bank"


def test_the_id_alone_needs_no_right_to_read_the_cluster(signed_in: Neo, lab: FakeServer) -> None:
    signed_in("slurm", "storage", "allow", "slurmcluster-e00bank")
    assert not lab.asked(f"{CLUSTERS}/Get")


def test_an_account_is_named_and_taken_away(signed_in: Neo, lab: FakeServer) -> None:
    assert signed_in("slurm", "storage", "use-account", "bank", "trainer").code == 0
    assert signed_in("slurm", "storage", "use-account", "bank", "none").code == 0
    (asked,) = lab.asked("nebius.iam.v1.ServiceAccountService/GetByName")
    assert (asked.parent_id, asked.name) == (PROJECT, "trainer")
    named, none = lab.asked(f"{CLUSTERS}/Update")
    assert named.spec.service_account_id == "serviceaccount-e00t" and named.metadata.resource_version == 3
    mask = contract.parse_mask(lab.headers(f"{CLUSTERS}/Update")["x-resetmask"])
    old = cluster("bank")
    old.spec.service_account_id = "serviceaccount-e00t"
    merged = contract.merge_update(old, none, mask)
    assert not merged.spec.service_account_id and merged.spec.node_sets[0].count == 2


def test_keys_are_listed_without_what_opens_anything(signed_in: Neo, lab: FakeServer) -> None:
    ran = signed_in("slurm", "storage", "list", "bank", "--output", "json")
    assert json.loads(ran.out) == [
        {"user": "root", "account_id": "serviceaccount-e00t", "expires_at": "2026-11-01T10:00:00+00:00"}
    ]
    assert "RENEWED BEFORE" in signed_in("slurm", "storage", "list", "bank").out
