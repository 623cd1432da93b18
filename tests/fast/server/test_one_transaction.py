"""The process dies between any two writes of a change, and the client tries again.

Row, operation, audit event and idempotency key are there together or not at all, and the change is made once,
for standard and custom verbs alike.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import httpx
import pytest

from neocloud.control_plane.composition import SERVICES
from neocloud.core.clock import SystemClock
from neocloud.core.readers import ServiceRegistry
from neocloud.core.service import Dependencies, Method, Service, Write, register_services
from neocloud.core.store import Transaction, open_store
from neocloud.engines.fake import FakeEngine
from neocloud.server import ApiServer
from neocloud.services import emulator, operator
from neocloud.settings.settings import Settings
from neocloud.testing.crash import Fuse, MortalStore
from tests.fast.server.conftest import (
    ADMIN,
    FILESYSTEM,
    INVENTORY,
    PROJECT,
    SUBJECTS,
    TENANT,
    PermissionTable,
    TokenTable,
    project,
)
from tests.fast.server.killed_server import STOP, stop

FILESYSTEMS = "nebius.compute.v1.FilesystemService"
FORGET = "neocloud.operator.v1.ResourceService/Forget"
KEY = "3f0c5a52-8d0d-4a3c-9b39-0e3f1a6e2f10"
MOST_WRITES = 30


class Cloud:
    def __init__(self, store: MortalStore, http: httpx.AsyncClient) -> None:
        self.store = store
        self._http = http

    async def call(self, path: str, body: dict[str, Any], key: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {ADMIN}"} | ({"x-idempotency-key": key} if key else {})
        return await self._http.post(f"/{path}", json=body, headers=headers)

    async def written(self, path: str) -> tuple[Any, ...]:
        """The rows, and how many operations, audit events and keys there are of the method."""

        def read(tx: Transaction) -> tuple[Any, ...]:
            rows = tx.list(FILESYSTEM.message)[0]
            operations = [each for each in tx.list_operations()[0] if each.method == path]
            events = [each for each in tx.list_audit()[0] if each.method == path]
            key = tx.recall(SUBJECTS[ADMIN].id, path, KEY)
            return rows, len(operations), len(events), key is not None

        return await self.store.read(read)


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    clock = SystemClock()
    store: Any = MortalStore(await open_store(tmp_path / "state.db", b"k" * 32, clock), Fuse())
    await store.write(lambda tx: tx.insert(replace(project(TENANT), parent_id="")))
    await store.write(lambda tx: tx.insert(project(PROJECT)))
    custom = Method(STOP, stop, "compute.filesystems.stop", target=lambda request: request.id, is_change=True)
    services = [Service("tests", kinds=(FILESYSTEM,), methods=(custom,)), operator.SERVICE]
    settings = Settings(home=tmp_path, calls_per_second=0, sign_ins_per_second=0)
    dependencies = Dependencies(store, clock, FakeEngine(), settings, ServiceRegistry())
    register_services(services, dependencies)
    server = ApiServer(
        services,
        TokenTable(),
        PermissionTable(),
        dependencies,
        notify=lambda: None,
        inventory=lambda: INVENTORY,
    )
    await server.start()
    async with httpx.AsyncClient(
        base_url=f"http://{server.addresses.http}", trust_env=False, timeout=60
    ) as http:
        yield Cloud(store, http)
    await server.stop(grace_seconds=0)
    await store.close()


def test_every_change_is_one_transaction_unless_it_acts_outside_of_the_store() -> None:
    changes = [
        method for service in (*SERVICES, emulator.SERVICE) for method in service.methods if method.is_change
    ]
    outside = {method.path for method in changes if method.has_outside_effects}
    assert outside == {
        "neocloud.slurm.v1.ClusterService/Check",
        "neocloud.slurm.v1.BackupService/DumpAccounting",
        "neocloud.slurm.v1.BackupService/WriteAccounting",
        "neocloud.slurm.v1.BackupService/LoadAccounting",
        "neocloud.slurm.v1.JobService/Submit",
        "neocloud.slurm.v1.JobService/Cancel",
        "neocloud.slurm.v1.JobService/Diagnose",
        "neocloud.slurm.v1.RestService/Submit",
        "neocloud.slurm.v1.RestService/Cancel",
        "neocloud.emulator.v1.FaultService/Inject",
        "neocloud.emulator.v1.FaultService/Clear",
    }
    for method in changes:
        answered = get_type_hints(method.handler)["return"]
        assert (get_origin(answered) is Write) != method.has_outside_effects, method.path


def be_deleting(tx: Transaction, identifier: str) -> None:
    row = tx.get(identifier)
    assert row is not None
    tx.update(replace(row, deleted_at=datetime.now(UTC) - timedelta(hours=1)))


async def prepare(cloud: Cloud, verb: str) -> tuple[str, dict[str, Any]]:
    """The call to be killed."""
    metadata = {"parentId": PROJECT, "name": "data"}
    create = {"metadata": metadata, "spec": {"type": "NETWORK_SSD", "sizeGibibytes": 1}}
    if verb == "Create":
        return f"{FILESYSTEMS}/Create", create
    identifier = (await cloud.call(f"{FILESYSTEMS}/Create", create)).json()["resourceId"]
    if verb == "Update":
        body = {"metadata": {"id": identifier, "name": "data"}, "spec": {"sizeGibibytes": 2}}
        return f"{FILESYSTEMS}/Update", body
    if verb == "Forget":
        await cloud.store.write(lambda tx: be_deleting(tx, identifier))
    paths = {"Stop": STOP, "Delete": f"{FILESYSTEMS}/Delete", "Forget": FORGET}
    return paths[verb], {"id": identifier}


@pytest.mark.parametrize("verb", ["Create", "Update", "Delete", "Stop", "Forget"])
async def test_a_change_is_there_with_its_records_or_not_at_all(cloud: Cloud, verb: str) -> None:
    path, body = await prepare(cloud, verb)
    before = await cloud.written(path)
    points = 0
    answer: httpx.Response | None = None
    for number in range(1, MOST_WRITES):
        cloud.store.revive(Fuse(number))
        answer = await cloud.call(path, body, KEY)
        if answer.status_code == 200:
            break
        points += 1
        cloud.store.revive(Fuse())
        rows, *records = after = await cloud.written(path)
        assert after == before or (rows != before[0] and records == [1, 1, True]), cloud.store.fuse.place
        if after != before:
            answer = await cloud.call(path, body, KEY)
            assert answer.status_code == 200, "The retry of a change that was made is answered."
            break
    assert points >= 4, "row, operation, audit event, key: the process died before each"
    rows, *records = await cloud.written(path)
    assert records == [1, 1, True]
    assert len(rows) == (0 if verb in ("Delete", "Forget") else 1)
    assert verb != "Stop" or rows[0].labels == {"stopped": "1"}
    assert answer is not None and (await cloud.call(path, body, KEY)).json() == answer.json()


async def test_calls_with_one_key_at_once_make_one_change(cloud: Cloud) -> None:
    path, body = await prepare(cloud, "Stop")
    answers = await asyncio.gather(*(cloud.call(path, body, KEY) for _ in range(5)))
    assert len({answer.json()["id"] for answer in answers}) == 1
    rows, *records = await cloud.written(path)
    assert (rows[0].labels, records) == ({"stopped": "1"}, [1, 1, True])
