"""A server on loopback with a real store and two kinds: one done at once, one with a reconciler.

The kinds are one line each on purpose: whatever the tests see of them is generic.
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from nebius.aio.token.token import Token
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from neocloud.core import contract, operations
from neocloud.core.clock import SystemClock
from neocloud.core.kind import Kind, Rules, Violation
from neocloud.core.readers import Subject
from neocloud.core.service import Method, Service
from neocloud.core.store import Resource, Store, Transaction, open_store
from neocloud.core.store.sqlite import empty_database
from neocloud.server import ApiServer
from tests.control_plane import plain_dependencies

PROJECT_KIND = "nebius.iam.v1.Container"
PROJECT = "project-e00-tests"
OTHER_PROJECT = "project-e00-others"
TENANT = "tenant-e00-tests"
INVENTORY: Any = "inventory"
"""Rules find it where the machine's capabilities would be."""
ADMIN, READER, OUTSIDER = "admin-token", "reader-token", "outsider-token"
SUBJECTS = {
    ADMIN: Subject("serviceaccount-e00admin", "service_account", "admin", TENANT),
    READER: Subject("serviceaccount-e00reader", "service_account", "reader", TENANT),
    OUTSIDER: Subject("serviceaccount-e00outsider", "service_account", "outsider", "tenant-e00-other"),
}


class FilesystemRules(Rules):
    def defaults(self, resource: Any) -> None:
        resource.spec.block_size_bytes = resource.spec.block_size_bytes or 4096
        resource.status.size_bytes = resource.spec.size_gibibytes << 30

    def violations(self, new: Any, old: Any, reader: Any) -> list[Violation]:
        assert reader.subject is not None and reader.inventory == INVENTORY
        if len(reader.list("nebius.compute.v1.Filesystem", new.metadata.parent_id)) > 50:
            raise contract.not_enough_resources("filesystem", "1", "The disk is full. Delete a filesystem.")
        if new.spec.size_gibibytes > 1000:
            return [Violation("spec.size_gibibytes", f"is {new.spec.size_gibibytes}; must be 1 to 1000")]
        return []

    def check_delete(self, resource: Any, reader: Any) -> None:
        if resource.spec.forbid_deletion:
            raise contract.bad_state(
                resource.metadata.id, "It is protected. Set forbid_deletion to false first."
            )


FILESYSTEM = Kind(
    message="nebius.compute.v1.Filesystem",
    rpc="nebius.compute.v1.FilesystemService",
    id_prefix="computefilesystem",
    permission="compute.filesystems",
    parent_kinds=(PROJECT_KIND, "neocloud.slurm.v1.Cluster"),
    rules=FilesystemRules(),
    initial_state="READY",
)
CLUSTER = Kind(
    message="neocloud.slurm.v1.Cluster",
    rpc="neocloud.slurm.v1.ClusterService",
    id_prefix="slurmcluster",
    permission="slurm.clusters",
    parent_kinds=(PROJECT_KIND,),
    initial_state="CREATING",
    is_reconciled=True,
)


class TokenTable:
    async def authenticate(self, token: str) -> Subject:
        if token not in SUBJECTS:
            raise contract.unauthenticated("The token is not known. Sign in again.")
        return SUBJECTS[token]


class PermissionTable:
    """The admin may do all in one project, the reader may only look, and the outsider nothing."""

    async def authorize(self, subject: Subject, permission: str, target_id: str) -> None:
        is_looking = subject == SUBJECTS[READER] and permission.endswith((".get", ".list"))
        if not (is_looking or subject == SUBJECTS[ADMIN]) or target_id == OTHER_PROJECT:
            raise contract.permission_denied(permission, target_id)


@dataclass
class Submissions:
    """The calls of the tests' custom method."""

    scripts: list[str] = field(default_factory=list)

    async def submit(self, call: Any, request: Any) -> Any:
        self.scripts.append(request.script)
        if request.script == "crash":
            raise ZeroDivisionError("hush")
        return contract.message("neocloud.slurm.v1.SubmitJobResponse")(job_id=len(self.scripts))


@dataclass
class Cloud:
    server: ApiServer
    store: Store
    clock: SystemClock
    submissions: Submissions
    notified: list[bool]
    sdk: Callable[[str], SDK]
    http: httpx.AsyncClient

    async def call(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """POST to the JSON gateway as the admin."""
        given = {"authorization": f"Bearer {ADMIN}", "content-type": "application/json", **headers}
        text = body if isinstance(body, str | bytes) else json.dumps(body)
        return await self.http.post(f"/{path}", content=text, headers=given)

    async def settle(self, resource_id: str) -> None:
        """Finish what is pending on a resource, as its reconciler would."""

        def work(tx: Transaction) -> None:
            row = tx.get(resource_id)
            assert row is not None
            version = row.resource_version
            tx.update(replace(row, status=b"", observed_version=version))
            operations.finish_for(tx, resource_id, datetime.now(UTC), observed_version=version)

        await self.store.write(work)


def project(project_id: str) -> Resource:
    now = datetime.now(UTC)
    return Resource(project_id, PROJECT_KIND, TENANT, project_id, now, now)


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    clock = SystemClock()
    (tmp_path / "state.db").write_bytes(empty_database())
    store = await open_store(tmp_path / "state.db", b"k" * 32, clock)
    await store.write(lambda tx: [tx.insert(project(each)) for each in (PROJECT, OTHER_PROJECT)])
    submissions, notified = Submissions(), []
    submit = Method(
        "neocloud.slurm.v1.JobService/Submit",
        submissions.submit,
        "slurm.jobs.submit",
        target=lambda request: request.cluster_id,
        is_change=True,
        has_outside_effects=True,
    )
    server = ApiServer(
        [Service("tests", kinds=(FILESYSTEM, CLUSTER), methods=(submit,))],
        TokenTable(),
        PermissionTable(),
        plain_dependencies(store, clock),
        notify=lambda: notified.append(True),
        inventory=lambda: INVENTORY,
    )
    await server.start()
    sdks: list[SDK] = []

    def sdk(token: str = ADMIN) -> SDK:
        address = server.addresses.grpc
        sdks.append(
            SDK(
                resolver=Constant(address),
                options=[(INSECURE, True)],
                credentials=Token(token),
                user_agent_prefix="tests/1.0",
            )
        )
        return sdks[-1]

    http = httpx.AsyncClient(base_url=f"http://{server.addresses.http}", trust_env=False, timeout=60)
    try:
        yield Cloud(server, store, clock, submissions, notified, sdk, http)
    finally:
        await http.aclose()
        for each in sdks:
            await each.close()
        await server.stop(grace_seconds=0)
        await store.close()
