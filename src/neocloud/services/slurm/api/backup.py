"""The accounting of a cluster for `neo slurm cluster backup` and `restore`: a dump in parts, and back.

The image's `accounting-archive` does it beside the database, in the accounting pod. The writer of a dump may
have forged it: that program executes nothing of it and bounds it, and the pod holds nothing of other
clusters.
"""

import re
import secrets
from collections.abc import Sequence

from neocloud.core import contract
from neocloud.core.service import Call, Method
from neocloud.core.store.protocol import Resource
from neocloud.engines.base import EngineError, EngineUnavailable, ExecResult, Reference
from neocloud.messages.neocloud.slurm.v1 import (
    DumpAccountingRequest,
    DumpAccountingResponse,
    LoadAccountingRequest,
    LoadAccountingResponse,
    ReadAccountingRequest,
    ReadAccountingResponse,
    WriteAccountingRequest,
    WriteAccountingResponse,
)
from neocloud.services.slurm.access import SlurmAccess, api_errors
from neocloud.services.slurm.render import ACCOUNTING_POD, CONTROLLER_PODS, DATABASE_CONTAINER
from neocloud.services.slurm.types import Secret, namespace

PROGRAM = "/usr/local/lib/neocloud/accounting-archive"
PART_BYTES = 2 * 2**20
PART_REQUEST_BYTES = 3 * 2**20
"""Bytes that a WriteAccounting may hold beyond other requests: a part, as JSON has it."""
DUMP_SECONDS = 600.0
MAX_FIRST_JOB = 60_000_000
"""Slurm's numbers of jobs begin again at about 67 million."""
PROGRAM_MISSING = frozenset({126, 127})
_NUMBER = re.compile(rb"[0-9]{1,18}")


async def dump(call: Call, request: DumpAccountingRequest) -> DumpAccountingResponse:
    dump_id = secrets.token_hex(16)
    cluster, result = await _run(call, request.cluster_id, "dump", dump_id, with_name=True)
    return DumpAccountingResponse(dump_id=dump_id, size_bytes=_number(cluster, result))


async def read(call: Call, request: ReadAccountingRequest) -> ReadAccountingResponse:
    arguments = (request.dump_id, str(request.offset), str(PART_BYTES))
    _, result = await _run(call, request.cluster_id, "read", *arguments)
    return ReadAccountingResponse(data=result.stdout)


async def write(call: Call, request: WriteAccountingRequest) -> WriteAccountingResponse:
    await _run(call, request.cluster_id, "write", str(request.offset), stdin=request.data)
    return WriteAccountingResponse()


async def load(call: Call, request: LoadAccountingRequest) -> LoadAccountingResponse:
    cluster, result = await _run(call, request.cluster_id, "load", with_name=True)
    following = _number(cluster, result) + 1
    if following <= MAX_FIRST_JOB:
        number = str(following).encode()
        await call.dependencies.store.write(lambda tx: tx.put_secret(cluster.id, Secret.FIRST_JOB, number))
    access = SlurmAccess.of(call.dependencies)
    with api_errors(cluster.id):
        observation = await access.observe(cluster.id)
        controllers = [name for name in CONTROLLER_PODS if observation.pod(name) is not None]
        for pod in (ACCOUNTING_POD, *controllers):  # all have accounts and users in memory
            try:
                await call.dependencies.engine.restart(Reference("Pod", namespace(cluster.id), pod))
            except EngineError as error:
                text = f"The accounting is loaded, but {pod} was not restarted: {error}"
                raise contract.unavailable(text) from error
    return LoadAccountingResponse(next_job_id=following)


async def _run(
    call: Call, cluster_id: str, *arguments: str, stdin: bytes = b"", with_name: bool = False
) -> tuple[Resource, ExecResult]:
    """Run the program; `with_name` gives it the cluster's name, which its tables have."""
    access = SlurmAccess.of(call.dependencies)
    with api_errors(cluster_id):
        cluster = await access.ready_cluster(cluster_id)
    command: Sequence[str] = (PROGRAM, *arguments, *([cluster.name] if with_name else ()))
    try:
        result = await call.dependencies.engine.exec(
            Reference("Pod", namespace(cluster_id), ACCOUNTING_POD),
            command,
            container=DATABASE_CONTAINER,
            stdin=stdin,
            timeout_seconds=DUMP_SECONDS,
            max_output_bytes=2 * PART_BYTES,
        )
    except EngineUnavailable as error:
        raise contract.unavailable(f"The engine does not answer: {error}") from error
    except EngineError as error:
        text = f"The accounting of {cluster.name} was not reached: {error} Try again in a moment."
        raise contract.bad_state(cluster.id, text) from error
    if result.exit_code in PROGRAM_MISSING:
        text = (
            f"Cluster {cluster.name} runs an image of an earlier release, which has no backups."
            " Its operator replaces it: neo down, then neo up."
        )
        raise contract.bad_state(cluster.id, text)
    if result.exit_code:
        said = result.stderr.decode(errors="replace").strip()[-500:] or f"exit code {result.exit_code}"
        raise contract.bad_state(cluster.id, f"The accounting of {cluster.name} was refused: {said}.")
    return cluster, result


def _number(cluster: Resource, result: ExecResult) -> int:
    """Return the number that the program printed last."""
    last = (result.stdout.split() or [b""])[-1]
    if not _NUMBER.fullmatch(last):
        raise contract.bad_state(cluster.id, f"The accounting of {cluster.name} gave no number.")
    return int(last)


_BACKUPS = "neocloud.slurm.v1.BackupService"


def _cluster_id(
    request: DumpAccountingRequest | ReadAccountingRequest | WriteAccountingRequest | LoadAccountingRequest,
) -> str:
    return request.cluster_id


METHODS = (
    Method(
        f"{_BACKUPS}/DumpAccounting",
        dump,
        "slurm.clusters.backup",
        _cluster_id,
        is_change=True,
        has_outside_effects=True,
    ),
    Method(f"{_BACKUPS}/ReadAccounting", read, "slurm.clusters.backup", _cluster_id),
    Method(
        f"{_BACKUPS}/WriteAccounting",
        write,
        "slurm.clusters.restore",
        _cluster_id,
        is_change=True,
        has_outside_effects=True,
        larger_request_bytes=PART_REQUEST_BYTES,
    ),
    Method(
        f"{_BACKUPS}/LoadAccounting",
        load,
        "slurm.clusters.restore",
        _cluster_id,
        is_change=True,
        has_outside_effects=True,
    ),
)
