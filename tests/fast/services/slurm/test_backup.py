"""The accounting of a cluster through the API, with a fake engine: what reaches the database (ERR-20)."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime

import pytest

from neocloud.core.contract import Code
from neocloud.engines.base import ExecResult, Reference
from neocloud.services.slurm.api.backup import PROGRAM
from neocloud.services.slurm.render import ACCOUNTING_POD, CONTROLLER_POD
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud


class Database:
    """Answers as the image's program does; keeps what it was asked, and where."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.written = b""
        self.result = ExecResult(0, b"warning\n41\n", b"")

    def __call__(
        self, pod: Reference, container: str, command: Sequence[str], stdin: bytes
    ) -> ExecResult | None:
        if command[0] != PROGRAM:
            return None
        assert (pod.name, container) == (ACCOUNTING_POD, "database")
        self.asked.append(tuple(command[1:]))
        self.written += stdin
        return self.result


@pytest.fixture
async def cloud(tmp_path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path) as running:
        running.engine.responder = Database()
        yield running


async def test_a_dump_is_read_in_parts_by_the_number_that_it_was_given(cloud):
    cluster = await cloud.create_cluster(count=1)
    database, cluster_id = cloud.engine.responder, cluster.metadata.id
    dump = await cloud.call("BackupService/DumpAccounting", cluster_id=cluster_id)
    assert dump.size_bytes == 41
    database.result = ExecResult(0, b"rows", b"")
    part = await cloud.call(
        "BackupService/ReadAccounting", cluster_id=cluster_id, dump_id=dump.dump_id, offset=7
    )
    assert part.data == b"rows"
    assert database.asked == [("dump", dump.dump_id, "bank"), ("read", dump.dump_id, "7", str(2 * 2**20))]


async def test_after_a_load_job_numbers_go_on_and_both_daemons_read_the_accounts_again(cloud):
    cluster = await cloud.create_cluster(count=1)
    cluster_id = cluster.metadata.id
    before = {name: started(cloud, cluster_id, name) for name in (ACCOUNTING_POD, CONTROLLER_POD)}
    await cloud.call("BackupService/WriteAccounting", cluster_id=cluster_id, data="cm93cw==")
    assert cloud.engine.responder.written == b"rows"
    loaded = await cloud.call("BackupService/LoadAccounting", cluster_id=cluster_id)
    assert loaded.next_job_id == 42
    assert all(started(cloud, cluster_id, name) > time for name, time in before.items())
    version = cluster.status.configuration_version
    changed = await cloud.when(cluster_id, lambda seen: seen.status.configuration_version != version)
    assert changed.status.configuration_version


def started(cloud: FakeCloud, cluster_id: str, name: str) -> datetime:
    time = cloud.world.pods[Reference("Pod", cluster_id, name)].containers[0].started_at
    assert time is not None
    return time


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (ExecResult(68, b"", b"jobs have run in this cluster\n"), "jobs have run in this cluster"),
        (ExecResult(127, b"", b"not found"), "neo down, then neo up"),
        (ExecResult(0, b"many", b""), "no number"),
        (ExecResult(1, b"", b"x" * 10_000), "was refused"),
    ],
)
async def test_what_the_program_refuses_is_told_and_restarts_nothing(cloud, result, reason):
    cluster = await cloud.create_cluster(count=1)
    before = started(cloud, cluster.metadata.id, CONTROLLER_POD)
    cloud.engine.responder.result = result
    error = await cloud.refusal("BackupService/LoadAccounting", cluster_id=cluster.metadata.id)
    assert error.code is Code.FAILED_PRECONDITION
    assert reason in error.message and len(error.message) < 1000
    assert started(cloud, cluster.metadata.id, CONTROLLER_POD) == before


async def test_a_dump_has_no_other_names(cloud):
    cluster_id = (await cloud.create_cluster(count=1)).metadata.id
    for name in ("", "../../etc/passwd", "0" * 31, "$(reboot)", "-n"):
        error = await cloud.refusal("BackupService/ReadAccounting", cluster_id=cluster_id, dump_id=name)
        assert error.code is Code.INVALID_ARGUMENT, name
    assert not cloud.engine.responder.asked


async def test_a_cluster_that_is_not_there_has_no_accounting(cloud):
    error = await cloud.refusal("BackupService/DumpAccounting", cluster_id="slurmcluster-e00none")
    assert error.code in (Code.NOT_FOUND, Code.PERMISSION_DENIED)
