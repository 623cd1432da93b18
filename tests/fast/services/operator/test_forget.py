"""A resource whose deletion does not end is forgotten whole, by operators alone, and what stays is listed."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from neocloud.control_plane.composition import compose
from neocloud.control_plane.lifecycle import Composition
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.core.kind import FINALIZER
from neocloud.core.store import Resource, Transaction
from neocloud.engines.base import EngineError, Observation, Reference
from neocloud.engines.fake import FakeEngine
from neocloud.engines.gpu_ledger import GPU_NAMESPACE, pod_holder
from neocloud.engines.manifest import ConfigMap, Manifest
from neocloud.services import iam
from neocloud.services.compute.public import filesystem_spec
from neocloud.services.compute.types import FILESYSTEM
from neocloud.services.iam.rules.roles import ROLES, allows
from neocloud.services.operator import api
from neocloud.services.slurm.types import BatchJob, BatchJobs, ClusterUnreachable
from neocloud.settings.settings import Settings
from tests.control_plane import Cloud, cloud_in_process, sign_in
from tests.fast.services.iam import keys

FORGET = "neocloud.operator.v1.ResourceService/Forget"
FILESYSTEMS = "nebius.compute.v1.FilesystemService"
DEADLINE_SECONDS = 60.0
DEPLOYMENT = "neocloud.inference.v1.Deployment"
NOW = datetime(2026, 11, 1, tzinfo=UTC)


class StubbornEngine(FakeEngine):
    """An engine that removes nothing. With a gate, the calls of one method wait for it instead."""

    def __init__(self) -> None:
        super().__init__()
        self.gated = ""
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()

    async def apply(self, objects: Sequence[Manifest]) -> bool:
        await self._pass("apply")
        return await super().apply(objects)

    async def observe(self, namespace: str) -> Observation:
        await self._pass("observe")
        return await super().observe(namespace)

    async def remove(self, references: Sequence[Reference]) -> None:
        await self._pass("remove")
        raise EngineError("The volume is busy.")

    def removal_commands(self, namespace: str) -> Sequence[str]:
        return (f"list {namespace}",)

    async def _pass(self, method: str) -> None:
        if self.gated == method:
            self.waiting.set()
            await self.gate.wait()


@pytest.fixture
async def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cloud]:
    monkeypatch.setattr(api, "SHORTEST_DELETION", timedelta(0))

    def composed(settings: Settings, engine: Any) -> Composition:
        clock = SystemClock()

        async def bootstrap(store: Any) -> iam.Bootstrap:
            return await iam.bootstrap(store, clock, make_key=keys.rsa_key)

        return replace(compose(settings, engine, clock), bootstrap=bootstrap)

    async with cloud_in_process(tmp_path, StubbornEngine(), composed=composed) as running:
        yield running


async def create(cloud: Cloud, project_id: str) -> str:
    metadata = {"parent_id": project_id, "name": "data"}
    spec = {"size_gibibytes": 1, "type": "NETWORK_SSD"}
    return (await cloud.call(f"{FILESYSTEMS}/Create", metadata=metadata, spec=spec)).resource_id


async def stuck(cloud: Cloud, project_id: str = "") -> str:
    """Return the id of a filesystem whose deletion does not end."""
    identifier = await create(cloud, project_id or cloud.project_id)
    await cloud.until(identifier, "READY")
    await cloud.call(f"{FILESYSTEMS}/Delete", id=identifier)
    return identifier


async def insert(cloud: Cloud, **columns: Any) -> str:
    """Insert another filesystem beside the API, and return its id."""
    now = datetime.now(UTC)
    spec = filesystem_spec(1).SerializeToString()
    row = Resource(
        contract.new_id("computefilesystem"), FILESYSTEM, cloud.project_id, "part", now, now, spec=spec
    )
    row = replace(row, **{"state": "CREATING", "finalizers": (FINALIZER,), **columns})
    await cloud.running.store.write(lambda tx: tx.insert(row))
    cloud.running.worker.notify()
    return row.id


async def read(cloud: Cloud, work: Callable[[Transaction], Any]) -> Any:
    return await cloud.running.store.read(work)


def objects(answer: Any) -> set[tuple[str, str, str]]:
    return {(each.kind, each.namespace, each.name) for each in answer.left_behind.objects}


async def outsider_of(cloud: Cloud) -> tuple[Cloud, str]:
    """Return the cloud as the administrator of another tenant sees it, and their project."""
    other = await iam.bootstrap(
        cloud.running.store, SystemClock(), tenant_name="other-bank", make_key=keys.other_rsa_key
    )
    return replace(cloud, token=await sign_in(cloud.channel, other.credentials)), other.project_id


def test_only_administrators_hold_the_permission() -> None:
    assert {role for role in ROLES if allows(role, api.PERMISSION)} == {"admin"}


async def test_a_stuck_resource_goes_with_all_that_it_owns(cloud: Cloud) -> None:
    store, identifier = cloud.running.store, await stuck(cloud)
    part = await insert(cloud, owner_id=identifier)
    await cloud.until(part, "READY")
    await store.write(lambda tx: tx.put_secret(part, "key", b"secret"))
    await store.write(lambda tx: tx.reserve("names", "data", identifier))
    folder = cloud.home / "volumes" / identifier
    folder.mkdir(parents=True)
    assert (await read(cloud, lambda tx: tx.counters(cloud.project_id)))["compute.filesystem.count"] == 2

    answer = await cloud.call(FORGET, {"id": identifier}, headers={"x-idempotency-key": "once"})

    assert [each.id for each in answer.resources] == [identifier, part]
    assert objects(answer) >= {("PersistentVolumeClaim", each, each) for each in (identifier, part)}
    assert list(answer.left_behind.folders) == [str(folder)]
    assert list(answer.left_behind.commands) == [f"list {each}" for each in sorted((identifier, part))]
    assert not answer.left_behind.engine_error
    assert answer.operation.status.code == 0 and answer.operation.resource_id == identifier
    assert [await cloud.row(each) for each in (identifier, part)] == [None, None]
    assert "compute.filesystem.count" not in await read(cloud, lambda tx: tx.counters(cloud.project_id))
    assert await read(cloud, lambda tx: tx.secret(part, "key")) is None
    assert await read(cloud, lambda tx: tx.reservations("names")) == {}
    ended = (await read(cloud, lambda tx: tx.list_operations(resource_id=identifier)))[0]
    assert [(row.method.rpartition("/")[2], row.code) for row in ended] == [
        ("Forget", 0),
        ("Delete", int(Code.ABORTED)),
        ("Create", 0),
    ]
    assert ended[1].message == api.REASON
    assert Reference("PersistentVolumeClaim", part, part) in cloud.engine.world.objects, "nothing was removed"

    again = await cloud.call(FORGET, {"id": identifier}, headers={"x-idempotency-key": "once"})
    assert again == answer
    assert (await cloud.refusal(FORGET, id=identifier)).code is Code.NOT_FOUND
    name_again = await create(cloud, cloud.project_id)
    await cloud.until(name_again, "READY")


async def test_gpus_stay_reserved_for_what_is_left_running(cloud: Cloud) -> None:
    identifier = await stuck(cloud)
    await cloud.running.store.write(lambda tx: tx.reserve(GPU_NAMESPACE, "GPU-0", identifier))
    await cloud.call(FORGET, id=identifier)
    held = await read(cloud, lambda tx: tx.reservations(GPU_NAMESPACE))
    assert held == {"GPU-0": pod_holder(Reference("Pod", identifier, identifier))}


async def test_what_a_step_makes_until_the_removal_is_listed(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier, delete_row = await stuck(cloud), api.delete_row
    late = ConfigMap(name="late", namespace=identifier)

    def removed(*arguments: Any) -> None:
        delete_row(*arguments)
        cloud.engine.world.objects[late.reference] = late

    monkeypatch.setattr(api, "delete_row", removed)
    answer = await cloud.call(FORGET, id=identifier)
    assert ("ConfigMap", identifier, "late") in objects(answer)


async def test_slurm_jobs_of_the_resources_are_listed() -> None:
    owner = Resource("deployment-e00a", DEPLOYMENT, "project-e00a", "chat", NOW, NOW)
    spec = contract.message("neocloud.inference.v1.DeploymentSpec")(slurm_cluster_id="slurmcluster-e00a")
    rows = [replace(owner, spec=spec.SerializeToString()), replace(owner, id="deployment-e00other")]
    on_cluster = [
        BatchJob(7, "deployment-e00a.replica-0.x", "RUNNING", has_ended=False, user_id=0),
        BatchJob(6, "deployment-e00a.replica-0.x", "RUNNING", has_ended=False, user_id=5001),
        BatchJob(8, "deployment-e00a.replica-1.x", "COMPLETED", has_ended=True, user_id=0),
        BatchJob(9, "deployment-e00ab.replica-0.x", "RUNNING", has_ended=False),
        BatchJob(10, "train", "RUNNING", has_ended=False),
    ]
    jobs = Mock(spec=BatchJobs)
    jobs.jobs = AsyncMock(return_value=on_cluster)
    assert await api._slurm_jobs(jobs, rows) == ([("slurmcluster-e00a", 7)], [])
    jobs.jobs = AsyncMock(side_effect=ClusterUnreachable("Its login node does not run."))
    found, (problem,) = await api._slurm_jobs(jobs, rows)
    assert not found and "slurmcluster-e00a" in problem and "login node" in problem


async def test_all_sources_of_a_listing_are_asked_at_the_same_time(tmp_path: Path) -> None:
    """One after another, they would take longer than a caller waits: each waits here for the others."""
    everyone = asyncio.Barrier(3)

    async def jobs(cluster_id: str) -> list[BatchJob]:
        await everyone.wait()
        return [BatchJob(7, f"{row.id}.x", "RUNNING", has_ended=False, user_id=0) for row in rows]

    spec = contract.message("neocloud.inference.v1.DeploymentSpec")
    rows = [
        Resource(f"deployment-e00{each}", DEPLOYMENT, "project-e00a", each, NOW, NOW)
        for each in ("first", "second")
    ]
    rows = [
        replace(row, spec=spec(slurm_cluster_id=f"slurmcluster-e00{row.name}").SerializeToString())
        for row in rows
    ]
    seen: list[str] = []

    async def observe(namespace: str) -> Observation:
        seen.append(namespace)
        if len(seen) == 1:
            await everyone.wait()
        return Observation(())

    engine = Mock(observe=observe, removal_commands=lambda namespace: ())
    dependencies = Mock(engine=engine, settings=Mock(home=tmp_path))
    dependencies.provided.find.return_value = Mock(jobs=jobs)
    async with asyncio.timeout(DEADLINE_SECONDS):
        left = await api._left_behind(dependencies, rows)
    assert left.engine_error == ""
    assert [each.namespace for each in left.objects] == ["slurmcluster-e00first", "slurmcluster-e00second"]


async def test_the_audit_log_of_the_resources_tenant_has_it(cloud: Cloud) -> None:
    outsider, project_id = await outsider_of(cloud)
    identifier = await stuck(outsider, project_id)
    project = await cloud.row(project_id)
    await cloud.call(FORGET, id=identifier)
    event = (await read(cloud, lambda tx: tx.list_audit(resource_id=identifier)))[0][0]
    assert project is not None and event.tenant_id == project.parent_id
    assert (event.method, event.status) == (FORGET, "DONE")
    assert (event.resource_name, event.resource_kind, event.action) == ("data", "filesystem", "forget")
    assert event.subject_name == "operator"


async def test_what_is_not_stuck_stays(cloud: Cloud) -> None:
    identifier = await create(cloud, cloud.project_id)
    for protected in (identifier, cloud.project_id, cloud.tenant_id):
        refused = await cloud.refusal(FORGET, id=protected)
        assert refused.code is Code.FAILED_PRECONDITION and "not being deleted" in refused.message
    await cloud.until(identifier, "READY")
    await cloud.call(f"{FILESYSTEMS}/Delete", id=identifier)
    part = await insert(cloud, owner_id=identifier)
    child = await insert(cloud, parent_id=part, name="child")
    refused = await cloud.refusal(FORGET, id=identifier)
    assert refused.code is Code.FAILED_PRECONDITION and "still holds child" in refused.message
    assert (await cloud.refusal(FORGET, id="computefilesystem-e00none")).code is Code.NOT_FOUND
    assert (await cloud.refusal(FORGET, id="")).code is Code.INVALID_ARGUMENT
    assert all([await cloud.row(each) for each in (identifier, part, child)])


async def test_a_deletion_that_has_just_begun_is_not_forced(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    identifier = await stuck(cloud)
    monkeypatch.setattr(api, "SHORTEST_DELETION", timedelta(hours=1))
    refused = await cloud.refusal(FORGET, id=identifier)
    assert refused.code is Code.FAILED_PRECONDITION and "Try again in 3" in refused.message
    assert await cloud.row(identifier)


async def test_what_cannot_be_listed_does_not_keep_it(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever keeps the deletion from ending may fail while the list is made, too."""

    async def broken(namespace: str) -> Observation:
        raise KeyError("neocloud.pod")

    identifier = await stuck(cloud)
    (tmp_path / "volumes" / identifier).mkdir(parents=True)
    (tmp_path / "volumes" / "dead").symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(cloud.engine, "observe", broken)
    left = (await cloud.call(FORGET, id=identifier)).left_behind
    assert "neocloud.pod" in left.engine_error
    assert list(left.folders) == [str(tmp_path / "volumes" / identifier)]
    assert await cloud.row(identifier) is None


async def test_the_administrator_of_another_tenant_forces_nothing(cloud: Cloud) -> None:
    outsider, project_id = await outsider_of(cloud)
    foreign, own = await stuck(cloud), await stuck(outsider, project_id)
    refusals = [
        await outsider.refusal(FORGET, id=each) for each in (foreign, own, "computefilesystem-e00none")
    ]
    assert {refusal.code for refusal in refusals} == {Code.PERMISSION_DENIED}
    assert len({refusal.message for refusal in refusals}) == 1, "they do not say what exists"
    assert await cloud.row(foreign) and await cloud.row(own)


@pytest.mark.parametrize("method", ["apply", "remove"])
async def test_a_run_in_progress_writes_nothing_afterwards(
    cloud: Cloud, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    caplog.set_level(logging.INFO)
    cloud.engine.gated = method
    identifier = await create(cloud, cloud.project_id)
    if method == "remove":
        await cloud.until(identifier, "READY")
    else:
        await cloud.engine.waiting.wait()
    await cloud.call(f"{FILESYSTEMS}/Delete", id=identifier)
    await cloud.engine.waiting.wait()
    await cloud.call(FORGET, id=identifier)
    cloud.engine.gate.set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while f"{identifier}: the result is dropped" not in caplog.text:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert await cloud.row(identifier) is None
    assert not (await read(cloud, lambda tx: tx.list_operations(resource_id=identifier, unfinished=True)))[0]


@pytest.mark.parametrize("is_hung", [False, True])
async def test_an_engine_that_does_not_answer_keeps_nothing(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, is_hung: bool
) -> None:
    identifier = await stuck(cloud)
    if is_hung:
        monkeypatch.setattr(api, "LISTING_SECONDS", 0.01)
        cloud.engine.gated = "observe"
    else:
        cloud.engine.faults.unavailable = True
    left = (await cloud.call(FORGET, id=identifier)).left_behind
    assert "not answer" in left.engine_error and not left.objects
    assert list(left.commands) == [f"list {identifier}"]
    assert await cloud.row(identifier) is None
    cloud.engine.gate.set()
