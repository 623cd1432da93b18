"""A server process that is killed around the commit of a custom verb leaves all of the change, or nothing."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from neocloud.core.clock import SystemClock
from neocloud.core.store import Resource, Transaction, open_store
from tests import ROOT
from tests.fast.server.conftest import ADMIN, FILESYSTEM, PROJECT, SUBJECTS, project
from tests.fast.server.killed_server import STOP, WRITES

ROW = "computefilesystem-e00data"
KEY = "3f0c5a52-8d0d-4a3c-9b39-0e3f1a6e2f10"


async def prepare(folder: Path) -> None:
    store = await open_store(folder / "state.db", b"k" * 32, SystemClock())
    now = datetime.now(UTC)
    row = Resource(ROW, FILESYSTEM.message, PROJECT, "data", created_at=now, updated_at=now)

    def insert(tx: Transaction) -> None:
        tx.insert(project(PROJECT))
        tx.insert(row)

    await store.write(insert)
    await store.close()


async def written(folder: Path) -> tuple[int, int, int, int]:
    """Return how often the verb is in the row, and how many operations, audit events and keys there are of
    it.
    """
    store = await open_store(folder / "state.db", b"k" * 32, SystemClock())

    def read(tx: Transaction) -> tuple[int, int, int, int]:
        row = tx.get(ROW)
        assert row is not None
        operations = [each for each in tx.list_operations()[0] if each.method == STOP]
        events = [each for each in tx.list_audit()[0] if each.method == STOP]
        key = tx.recall(SUBJECTS[ADMIN].id, STOP, KEY)
        return int(row.labels.get("stopped", "0")), len(operations), len(events), int(key is not None)

    try:
        return await store.read(read)
    finally:
        await store.close()


@contextmanager
def server(folder: Path, point: str) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.fast.server.killed_server", str(folder), point]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def call(address: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {ADMIN}", "x-idempotency-key": KEY}
    return httpx.post(
        f"http://{address}/{STOP}", json={"id": ROW}, headers=headers, trust_env=False, timeout=60
    )


@pytest.mark.parametrize("point", ["1", str(len(WRITES)), "commit"])
async def test_a_killed_server_leaves_all_of_a_change_or_nothing(tmp_path: Path, point: str) -> None:
    await prepare(tmp_path)
    with server(tmp_path, point) as address, pytest.raises(httpx.TransportError):
        call(address)
    assert await written(tmp_path) == ((1, 1, 1, 1) if point == "commit" else (0, 0, 0, 0))
    with server(tmp_path, "none") as address:
        answer = call(address)
        assert answer.status_code == 200, answer.text
        assert call(address).json() == answer.json()
    assert await written(tmp_path) == (1, 1, 1, 1)
