"""kill -9 of the server at random moments of create, scale and delete: it converges (SLURM-20).

One home folder lives through all of it. Every change is sent with an idempotency key and sent again by the
client when the server died before answering, as any client does.
"""

import json
import os
import random
import signal
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from neocloud.client.connection import Client, connect_as, invoke
from neocloud.client.credentials import read_credentials
from neocloud.client.errors import ClientError
from neocloud.core import contract
from neocloud.engines.fake import FakeWorld
from neocloud.testing.waiting import wait_until
from tests.iterations import iterations
from tests.real.services.slurm.killable import server_process

KILLS = iterations(50)
SEED = 20261121
SERVICE = "neocloud.slurm.v1.ClusterService"
CONTROL_PODS = {"accounting-0", "controller-0", "login-0"}


def connected(folder: Path) -> tuple[Client, str]:
    """A client of the server that runs now, and the first project."""
    wait_until(lambda: (folder / "server.json").exists())
    ready = json.loads((folder / "server.json").read_text())
    credentials = read_credentials(folder / "credentials.json")
    return connect_as(credentials, ready["grpc"]), ready["project_id"]


def cluster(client: Client, project: str) -> Any | None:
    found = client.call(f"{SERVICE}/List", {"parent_id": project}).items
    assert len(found) <= 1, "a duplicate"
    return found[0] if found else None


def request_for(count: int, current: Any | None, project: str) -> tuple[str, dict[str, Any]]:
    """The change that leads from what is to `count` workers; 0 means no cluster."""
    node_set = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": count}
    spec = {"node_sets": [node_set]}
    if current is None:
        return "Create", {"metadata": {"parent_id": project, "name": "bank"}, "spec": spec}
    if count == 0:
        return "Delete", {"id": current.metadata.id}
    metadata = {"id": current.metadata.id, "parent_id": project, "name": "bank"}
    return "Update", {"metadata": metadata, "spec": spec}


class Change:
    """A change that may be sent many times and happens once."""

    def __init__(self, verb: str, request: dict[str, Any]) -> None:
        self._path = f"{SERVICE}/{verb}"
        self._message = contract.from_dict(contract.method(self._path).input, request)
        self._key = str(uuid.uuid4())

    def send(self, client: Client) -> None:
        metadata = [
            ("x-idempotency-key", self._key),
            ("authorization", f"Bearer {client.tokens.token()}"),
        ]
        invoke(client.channel, client.endpoint, self._path, self._message, metadata, 60.0)

    def try_to_send(self, client: Client) -> None:
        """The server may be killed before, while or after it answers."""
        with suppress(ClientError):
            self.send(client)


def has_converged(client: Client, project: str, count: int) -> bool:
    current = cluster(client, project)
    if count == 0:
        return current is None
    if current is None:
        return False
    is_ready = current.status.state == 2 and not current.status.reconciling
    return is_ready and {node.name for node in current.status.nodes} == workers(count)


def workers(count: int) -> set[str]:
    return {f"worker-{index}" for index in range(count)}


def assert_nothing_left_over(folder: Path, client: Client, project: str, count: int) -> None:
    """Check that the engine runs what the one cluster asks for: no orphan, no duplicate."""
    world = FakeWorld.open(folder / "world")
    filesystems = client.call("nebius.compute.v1.FilesystemService/List", {"parent_id": project}).items
    if count == 0:
        assert not world.pods and not world.volumes and not cluster_namespaces(world)
        assert not filesystems
        return
    current = cluster(client, project)
    assert current is not None
    assert {reference.name for reference in world.pods} == CONTROL_PODS | workers(count)
    assert {reference.namespace for reference in world.pods} == {current.metadata.id}
    assert cluster_namespaces(world) == [current.metadata.id]
    assert [filesystem.metadata.id for filesystem in filesystems] == [
        current.status.shared_root_filesystem_id
    ]


def cluster_namespaces(world: FakeWorld) -> list[str]:
    """Without that of the project's network, which is there all the time."""
    return [name for name in world.namespaces if name.startswith("slurmcluster-")]


@pytest.mark.repeated
def test_a_server_killed_at_any_moment_converges(tmp_path):
    """Each server first finishes what the one before was killed in, then is killed in the next change."""
    chance = random.Random(SEED)
    count, change = 0, None
    for kill in range(KILLS + 1):
        with server_process(tmp_path) as pid:
            client, project = connected(tmp_path)
            if change is not None:
                change.send(client)
                wait_until(lambda: has_converged(client, project, count))  # noqa: B023  called at once
                assert_nothing_left_over(tmp_path, client, project, count)
            if kill < KILLS:
                count = chance.choice([other for other in range(4) if other != count])
                change = Change(*request_for(count, cluster(client, project), project))
                sender = threading.Thread(target=change.try_to_send, args=(client,))
                sender.start()
                time.sleep(chance.uniform(0, 0.4))  # the moment of the kill is the point of the test
                os.kill(pid, signal.SIGKILL)
                sender.join()
            client.close()
