"""A state folder written by an earlier version starts with this one, and nothing in it is lost.

`state-2026-11-23.tar.xz` is the folder of an emulator that ran commit 52ebbf8, the last one before the code
was redesigned; `expected.json` lists its resources as "id name state". Its keys and passwords open nothing
else.
"""

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from neocloud.testing.emulator import Emulator, connected, emulator_process
from neocloud.testing.waiting import wait_until

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("upgrade") / "home"
    folder.mkdir(mode=0o700)
    with tarfile.open(HERE / "state-2026-11-23.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def cloud(home: Path) -> Iterator[Emulator]:
    """This version's server on the folder; `connected` signs in with the key that lies in it."""
    with emulator_process(home), connected(home) as cloud:
        yield cloud


def id_of(name: str) -> str:
    return next(line.split()[0] for line in EXPECTED["resources"] if line.split()[1] == name)


def test_all_resources_are_there_and_return_to_their_states(cloud: Emulator, home: Path) -> None:
    """`neo down` recorded what runs as stopped; it runs again soon after the start."""
    expected = set(EXPECTED["resources"])
    wait_until(
        lambda: sorted(expected - stored_resources(home)),
        "not there, or not in the state",
        holds=lambda missing: not missing,
        seconds=180,
    )


def stored_resources(home: Path) -> set[str]:
    with sqlite3.connect(f"file:{home / 'state.db'}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT id, name, state FROM resources").fetchall()
    return {" ".join(text or "-" for text in row) for row in rows}


def test_places_of_replicas_became_reservations(cloud: Emulator, home: Path) -> None:
    """The hours that replicas of the old deployment ran are still charged."""
    with sqlite3.connect(f"file:{home / 'state.db'}?mode=ro", uri=True) as database:
        kinds = {
            table: {kind for (kind,) in database.execute(f"SELECT DISTINCT kind FROM {table}")}
            for table in ("resources", "queue", "history")
        }
    assert not any("neocloud.inference.v1.Place" in found for found in kinds.values())
    assert "neocloud.inference.v1.ReplicaReservation" in kinds["history"]


def test_sealed_specs_can_be_read(cloud: Emulator) -> None:
    instance = cloud.client.call("nebius.compute.v1.InstanceService/Get", {"id": id_of("old-machine")})
    assert instance.spec.cloud_init_user_data == "#cloud-config\nusers: []\n"
    assert instance.status.network_interfaces[0].ip_address.address


def test_a_password_of_before_signs_in(cloud: Emulator) -> None:
    request = {"email": EXPECTED["user"], "password": EXPECTED["password"], "client": "tests"}
    answer = cloud.client.call("neocloud.iam.v1.SignInService/WithPassword", request)
    assert answer.access_token


def test_clusters_and_deployments_can_be_changed(cloud: Emulator) -> None:
    def changed(service: str, name: str, change: Any) -> Any:
        resource = cloud.client.call(f"{service}/Get", {"id": id_of(name)})
        change(resource.spec)
        request = {"metadata": {"id": id_of(name)}, "spec": as_json(resource.spec)}
        cloud.client.wait(cloud.client.call(f"{service}/Update", request))
        return cloud.client.call(f"{service}/Get", {"id": id_of(name)})

    cluster = changed(
        "neocloud.slurm.v1.ClusterService", "old-cluster", lambda spec: setattr(spec.node_sets[0], "count", 3)
    )
    assert cluster.status.state == cluster.status.READY
    deployment = changed(
        "neocloud.inference.v1.DeploymentService",
        "old-deployment",
        lambda spec: (setattr(spec.scaling, "min_replicas", 1), setattr(spec.scaling, "max_replicas", 1)),
    )
    assert len(deployment.status.replicas) == 1


def test_what_depends_on_each_other_can_be_deleted(cloud: Emulator, home: Path) -> None:
    for service, name in (
        ("nebius.compute.v1.InstanceService", "old-machine"),
        ("nebius.compute.v1.DiskService", "old-boot"),
        ("neocloud.slurm.v1.ClusterService", "old-cluster"),
        ("neocloud.inference.v1.DeploymentService", "old-deployment"),
        ("neocloud.inference.v1.ModelService", "old-model"),
    ):
        cloud.client.wait(cloud.client.call(f"{service}/Delete", {"id": id_of(name)}))
        assert not [row for row in stored_resources(home) if row.startswith(f"{id_of(name)} ")]


def as_json(message: Any) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)
