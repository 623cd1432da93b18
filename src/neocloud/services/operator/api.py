"""Forget: remove a resource whose deletion does not end from the control plane, and list what is left behind.

The engine and Slurm are called for the list, so it is made outside of the transaction: once before it, and
again after it, with what a step in progress has made meanwhile. A reconcile run of the resource that is in
progress loses its lease with the row: it can write nothing afterwards.
"""

import asyncio
import logging
import os
import re
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

from neocloud.core import contract, operations, wire
from neocloud.core.kind import delete_row
from neocloud.core.service import Call, Dependencies, KindTable, Method, NewOperation, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.engines.base import Engine, Reference
from neocloud.engines.gpu_ledger import leave_to_pod
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.neocloud.operator.v1 import (
    EngineObject,
    ForgetResourceRequest,
    ForgetResourceResponse,
    ForgottenResource,
    LeftBehind,
)
from neocloud.services.iam.types import operators_tenant_id
from neocloud.services.slurm.types import BatchJobs

logger = logging.getLogger(__name__)

PERMISSION = "operator.resources.forget"
SHORTEST_DELETION = timedelta(seconds=30)
"""A deletion that began more recently cannot be forced: it may be about to end."""
LISTING_SECONDS = 10.0
"""How long the engine, the disk and Slurm may take, at the same time, to list what is left behind."""
REASON = "An operator removed the resource from the control plane by force. Its workloads may still exist."
_NAMED_CHILDREN = 5
SLURM_JOB = "SlurmJob"
"""The kind under which a batch job on a cluster is listed."""


async def forget(call: Call, request: ForgetResourceRequest) -> Write[ForgetResourceResponse]:
    dependencies = call.dependencies
    kinds = dependencies.provided.get(KindTable)
    listed = await dependencies.store.read(lambda tx: _to_forget(tx, call, request.id))
    left = await _left_behind(dependencies, listed)

    def work(tx: Transaction) -> NewOperation:
        rows = _to_forget(tx, call, request.id)
        if {row.id for row in rows} != {row.id for row in listed}:
            raise contract.conflict(request.id, f"What {request.id} owns has just changed. Try again.")
        now = dependencies.clock.now()
        for row in reversed(rows):
            operations.abort_unfinished(tx, row.id, now, REASON)
            keep_gpus = leave_to_pod(tx, row.id, Reference("Pod", row.id, row.id))
            delete_row(tx, kinds, row, now)
            keep_gpus()  # what runs on may still use them
        title = f"{_words(rows[0].kind)} {rows[0].name}".strip()
        return NewOperation(rows[0], title, has_removed=True, answer=lambda done: _response(done, rows, left))

    async def complete(answer: ForgetResourceResponse) -> ForgetResourceResponse:
        if answer.left_behind.engine_error:
            return answer  # what did not answer then is not waited for again
        again = await _left_behind(dependencies, listed)
        if not again.engine_error:
            answer.left_behind.CopyFrom(again)
        return answer

    return Write(work, complete=complete)


def _to_forget(tx: Transaction, call: Call, resource_id: str) -> list[Resource]:
    """Return the resource and everything that it owns, owners first. Raises ApiError when it must stay."""
    if call.subject is None or call.subject.tenant_id != operators_tenant_id(tx):
        raise contract.permission_denied(
            PERMISSION,
            resource_id,
            "Only an operator of this cloud can remove a resource by force. Give one its id.",
        )
    row = tx.get(resource_id)
    if row is None:
        raise contract.not_found("resource", resource_id)
    if row.deleted_at is None:
        raise contract.bad_state(
            row.id, f"{row.id} is not being deleted. Only a deletion that does not end can be forced."
        )
    left = SHORTEST_DELETION - (call.dependencies.clock.now() - row.deleted_at)
    if left > timedelta(0):
        raise contract.bad_state(
            row.id,
            f"The deletion of {row.id} has only just begun. Try again in {left.total_seconds():.0f} s.",
        )
    rows = {row.id: row}
    waiting = [row]
    while waiting:
        owned = [each for each in tx.owned(waiting.pop(0).id) if each.id not in rows]
        rows |= {each.id: each for each in owned}
        waiting += owned
    children = [child for each in rows for child in tx.children(each) if child.id not in rows]
    if children:
        named = ", ".join(f"{child.name or child.id}" for child in children[:_NAMED_CHILDREN])
        more = f" and {len(children) - _NAMED_CHILDREN} more" if len(children) > _NAMED_CHILDREN else ""
        raise contract.bad_state(row.id, f"{row.id} still holds {named}{more}. Delete these first.")
    return list(rows.values())


def _response(operation: Operation, rows: Sequence[Resource], left: LeftBehind) -> ForgetResourceResponse:
    resources = [ForgottenResource(id=row.id, kind=row.kind, name=row.name) for row in rows]
    return ForgetResourceResponse(operation=operation, resources=resources, left_behind=left)


async def _left_behind(dependencies: Dependencies, rows: Sequence[Resource]) -> LeftBehind:
    """Return what is known to be left. Whatever keeps the deletion from ending may fail here, too.

    All sources are asked at the same time: with what a second listing adds, a caller waits twice
    LISTING_SECONDS at most, whatever the number of clusters.
    """
    engine, home = dependencies.engine, dependencies.settings.home
    ids = {row.id for row in rows}
    (found, engine_problem), (folders, disk_problem), (jobs, unreachable) = await asyncio.gather(
        _objects(engine, rows, ids),
        _folders_in_time(home, ids),
        _slurm_jobs(dependencies.provided.find(BatchJobs), rows),
    )
    problems = [each for each in (engine_problem, disk_problem, *unreachable) if each]
    objects = sorted(found, key=lambda each: (each.namespace, each.kind != "Pod", each.kind, each.name))
    return LeftBehind(
        objects=[
            *(EngineObject(kind=each.kind, namespace=each.namespace, name=each.name) for each in objects),
            *(EngineObject(kind=SLURM_JOB, namespace=cluster_id, name=str(job)) for cluster_id, job in jobs),
        ],
        folders=folders,
        commands=[
            *(line for namespace in sorted(ids) for line in engine.removal_commands(namespace)),
            *(f"neo slurm job cancel {cluster_id} {job}" for cluster_id, job in jobs),
        ],
        engine_error=" ".join(problems),
    )


async def _objects(
    engine: Engine, rows: Sequence[Resource], ids: Collection[str]
) -> tuple[set[Reference], str]:
    """Return what the engine has of these resources, and what went wrong."""
    found: set[Reference] = set()
    try:
        async with asyncio.timeout(LISTING_SECONDS):
            for row in rows:
                found |= await _objects_of(engine, row, ids)
    except TimeoutError:
        return found, f"The engine did not answer within {LISTING_SECONDS:g} s."
    except Exception as error:
        logger.warning("What %s leaves behind cannot be listed: %s", rows[0].id, error, exc_info=True)
        return found, str(error) or type(error).__name__
    return found, ""


async def _folders_in_time(home: Path, ids: Collection[str]) -> tuple[list[str], str]:
    """Return the folders of these resources, and what went wrong."""
    try:
        async with asyncio.timeout(LISTING_SECONDS):
            return await asyncio.to_thread(lambda: sorted(str(path) for path in _folders(home, ids))), ""
    except TimeoutError:
        return [], f"The disk of the state folder did not answer within {LISTING_SECONDS:g} s."


async def _objects_of(engine: Engine, row: Resource, ids: Collection[str]) -> set[Reference]:
    """Return what is in the namespace of the resource, which has its id as a name.

    A part of something else may be in the namespace of its owner; there it has its id as a name.
    """
    seen = await engine.observe(row.id)
    found = {pod.reference for pod in seen.pods} | seen.others
    if row.owner_id and row.owner_id not in ids:
        seen = await engine.observe(row.owner_id)
        found |= {each for each in seen.others if each.name == row.id}
    return found


async def _slurm_jobs(
    batch_jobs: BatchJobs | None, rows: Sequence[Resource]
) -> tuple[list[tuple[str, int]], list[str]]:
    """Return the jobs of these resources that have not ended, as cluster and number, and what went wrong.

    The name of such a job begins with the id of its resource.
    """
    clusters: dict[str, list[str]] = {}
    for row in rows:
        spec = getattr(wire.resource_message(row), "spec", None)
        if cluster_id := getattr(spec, "slurm_cluster_id", ""):
            clusters.setdefault(cluster_id, []).append(f"{row.id}.")
    if batch_jobs is None:
        return [], []
    listed = await asyncio.gather(
        *(_jobs_on(batch_jobs, cluster_id, tuple(names)) for cluster_id, names in clusters.items())
    )
    found = [job for jobs, _ in listed for job in jobs]
    return found, [problem for _, problem in listed if problem]


async def _jobs_on(
    batch_jobs: BatchJobs, cluster_id: str, names: tuple[str, ...]
) -> tuple[list[tuple[str, int]], str]:
    """Return the jobs on one cluster with names that begin so, and what went wrong."""
    try:
        async with asyncio.timeout(LISTING_SECONDS):
            jobs = await batch_jobs.jobs(cluster_id)
    except Exception as error:
        logger.warning("Slurm jobs on %s cannot be listed: %s", cluster_id, error, exc_info=True)
        why = str(error) or f"Slurm did not answer within {LISTING_SECONDS:g} s."
        return [], f"Slurm jobs on {cluster_id} cannot be listed: {why}"
    own = [job for job in jobs if job.is_of_control_plane and job.name.startswith(names)]
    return [(cluster_id, job.id) for job in own if not job.has_ended], ""


def _folders(home: Path, ids: Collection[str]) -> Iterator[Path]:
    """Yield the folders in the first two levels of folders of the state folder that have an id as a name."""
    for folder in _subfolders(home):
        for path in _subfolders(folder):
            if path.name in ids:
                yield path
            else:
                yield from (path / each for each in ids if os.path.isdir(path / each))


def _subfolders(folder: Path) -> list[Path]:
    try:
        paths = list(folder.iterdir())
    except OSError:
        return []  # removed meanwhile, or on a disk that does not answer
    return [path for path in paths if os.path.isdir(path) and not os.path.islink(path)]  # False on an error


def _words(kind: str) -> str:
    """ "node group" of "nebius.mk8s.v1.NodeGroup"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.rpartition(".")[2]).lower()


METHODS = (
    Method("neocloud.operator.v1.ResourceService/Forget", forget, PERMISSION, is_change=True, is_ending=True),
)
