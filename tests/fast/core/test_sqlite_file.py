"""Files that an earlier release wrote open unchanged; `earlier_files` holds dumps of such files."""

import sqlite3
from pathlib import Path

import pytest

from neocloud.core.sqlite_file import SqliteFileError, lock_file, open_file
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.openai_files.batches import BatchRows
from neocloud.model_gateway.openai_files.database import Database
from neocloud.model_gateway.openai_files.files import FileStore
from neocloud.testing.waiting import FakeClock

EARLIER = Path(__file__).parent / "earlier_files"


def restore(name: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript((EARLIER / name).read_text())
    connection.close()
    return path


def test_an_earlier_ledger_keeps_its_rows(tmp_path: Path) -> None:
    path = restore("ledger.sql", tmp_path / "gateway" / "ledger.db")
    ledger = open_ledger(path, FakeClock())
    assert ledger.spent["project-a", "2023-11"] == 50
    ledger.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        hours = connection.execute("SELECT requests, input, output FROM hours WHERE hour < 1.8e12").fetchone()
    connection.close()
    assert hours == (1, 10, 5)


def test_earlier_files_and_batches_are_found(tmp_path: Path) -> None:
    restore("files.sql", tmp_path / "gateway" / "files.db")
    store = FileStore(tmp_path)
    file = store.find("file-000000000000000000000001")
    assert file is not None and (file.project_id, file.bytes, file.bucket_id) == ("project-a", 3, "")
    batch = BatchRows(store.database).find("batch_1")
    assert batch is not None and batch.state == "completed"


def test_a_file_of_a_newer_release_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "files.db"
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SqliteFileError, match="newer release .schema version 9"):
        Database(path)
    assert path.read_bytes() == before


def test_a_migration_that_fails_leaves_the_version_before(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    first = "CREATE TABLE one (a)"
    open_file(path, [first], timeout_seconds=1).close()
    with pytest.raises(SqliteFileError, match="syntax error"):
        open_file(path, [first, "CREATE TABLE two (a); CREATE nonsense"], timeout_seconds=1)
    connection = open_file(path, [first, "CREATE TABLE two (b)"], timeout_seconds=1)
    assert connection.execute("SELECT count(b) FROM two").fetchone() == (0,)
    connection.close()


def test_one_process_at_a_time_has_the_lock(tmp_path: Path) -> None:
    lock = lock_file(tmp_path / "x.db")
    with pytest.raises(SqliteFileError, match="Another process uses"):
        lock_file(tmp_path / "x.db")
    lock.release()
