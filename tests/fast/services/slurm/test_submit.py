"""Submitting a job while the login node fails: a job that may be in the queue is not submitted again."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from neocloud.core.contract import ApiError, Code
from neocloud.engines.base import (
    CommandInterrupted,
    EngineError,
    EngineUnavailable,
    ExecResult,
    OutputTooLarge,
)
from neocloud.engines.podman.execution import execute
from neocloud.engines.podman.libpod import Libpod
from neocloud.services.slurm.access import SlurmAccess, api_errors
from neocloud.services.slurm.batch_jobs import ClusterJobs
from neocloud.services.slurm.types import NewJob


class FailingAccess:
    def __init__(self, error: EngineError) -> None:
        self._error = error

    async def ready_cluster(self, cluster_id: str) -> None: ...

    async def run_in_login_shell(self, *arguments: object, **options: object) -> ExecResult:
        raise self._error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandInterrupted("Podman ended."), Code.UNKNOWN),
        (OutputTooLarge("sbatch", 7), Code.UNKNOWN),
        (EngineUnavailable("Podman does not answer."), Code.UNAVAILABLE),
        (EngineError("There is no such pod."), Code.UNAVAILABLE),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, EngineError) else each.name,
)
async def test_clients_repeat_only_what_was_not_started(error: EngineError, code: Code) -> None:
    jobs = ClusterJobs(cast(SlurmAccess, FailingAccess(error)))
    with pytest.raises(ApiError) as raised, api_errors("cluster"):
        await jobs.submit("cluster", NewJob("job", "#!/bin/sh\n"))
    assert raised.value.code is code
    assert (code is Code.UNKNOWN) == ("neo slurm job list" in raised.value.message)


class FakeLibpod:
    def __init__(self, socket: Path) -> None:
        self.socket = socket

    async def post(self, path: str, body: object) -> dict[str, str]:
        return {"Id": "execution"}

    async def get(self, path: str) -> dict[str, int]:
        raise EngineUnavailable("Podman does not answer.")


REFUSED = b"HTTP/1.1 500 Internal Server Error\r\n\r\nno such container"
STARTED = b"HTTP/1.1 101 UPGRADED\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "is_started"), [(b"", True), (STARTED, True), (REFUSED, False), (None, False)]
)
async def test_the_engine_says_whether_a_command_was_started(
    tmp_path: Path, answer: bytes | None, is_started: bool
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{")
        writer.write(answer or b"")
        writer.close()

    libpod = FakeLibpod(tmp_path / "podman.sock")
    server = await asyncio.start_unix_server(serve, libpod.socket) if answer is not None else None
    with pytest.raises(EngineError) as raised:
        await execute(cast(Libpod, libpod), "container", ["sbatch"], b"", 60, 1000)
    assert isinstance(raised.value, CommandInterrupted) is is_started
    if server is not None:
        server.close()
