"""Backups that are cut off, changed or made to do harm are refused, and change nothing. Issue 10."""

import gzip
import hashlib
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from neocloud.control_plane.backup import restore
from neocloud.control_plane.backup.archive import BackupError, open_regular
from neocloud.control_plane.backup.contents import DATABASES, FILES, MAX_FILE_BYTES
from neocloud.control_plane.backup.keys import Keys, needs_passphrase, new_key, read_keys
from neocloud.control_plane.backup.restore import check_backup
from tests.fast.control_plane.backup.conftest import left_in, restored


class Content:
    """Bytes to be encrypted as they are, in place of an archive of files."""

    error = None

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    def read(self, size: int = -1, /) -> bytes:
        return self._file.read(size)


def plain(backup: Path, keys: Keys) -> bytes:
    found = io.BytesIO()
    with backup.open("rb") as file:
        keys.decrypt(file, found)
    return gzip.decompress(found.getvalue())


def encrypted(path: Path, keys: Keys, tar: bytes) -> Path:
    with path.open("wb") as file:
        keys.encrypt(Content(gzip.compress(tar)), file)  # type: ignore[arg-type]
    return path


def members(tar: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return {info.name: archive.extractfile(info).read() for info in archive}  # type: ignore[union-attr]


def packed(files: Mapping[str, bytes], more: list[tarfile.TarInfo] | None = None) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in more or []:
            archive.addfile(info, io.BytesIO(bytes(info.size)) if info.size < 1 << 20 else None)
    return made.getvalue()


def with_manifest(files: Mapping[str, bytes], change: Callable[[dict[str, Any]], None]) -> dict[str, bytes]:
    """Return the files with a changed manifest. Its list of files is right where the change leaves it."""
    manifest = json.loads(files["manifest.json"])
    others = {name: content for name, content in files.items() if name != "manifest.json"}
    manifest["files"] = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in others.items()
    }
    change(manifest)
    return {"manifest.json": json.dumps(manifest).encode(), **others}


def unchanged(manifest: dict[str, Any]) -> None: ...


@pytest.fixture
def refused(keys: Keys, tmp_path: Path) -> Callable[[Path], str]:
    """Return why a backup is refused, by a restore and by a check that changed nothing."""

    def refuse(backup: Path) -> str:
        before = left_in(tmp_path)
        with pytest.raises(BackupError) as caught:
            restored(backup, keys, tmp_path / "new")
        with pytest.raises(BackupError) as again:
            check_backup(backup, keys, lambda _: None)
        assert str(again.value) == str(caught.value) and left_in(tmp_path) == before
        return str(caught.value)

    return refuse


Refused = Callable[[Path], str]


async def test_a_rewritten_backup_is_restored(backup: Path, keys: Keys, tmp_path: Path) -> None:
    """The refusals below are due to what each of them changes."""
    files = with_manifest(members(plain(backup, keys)), unchanged)
    restored(encrypted(backup, keys, packed(files)), keys, tmp_path / "new")


async def test_other_programs_read_the_archive(backup: Path, keys: Keys) -> None:
    found = members(plain(backup, keys))
    assert next(iter(found)) == "manifest.json"
    assert {"state.db", "store.key", "tls/ca.key"} < set(found)


async def test_a_file_that_was_cut_off_is_refused(backup: Path, refused: Refused) -> None:
    content = backup.read_bytes()
    for length in (len(content) - 1, len(content) // 2, 250, 100, 30):
        backup.write_bytes(content[:length])
        assert "The backup is damaged" in refused(backup)


async def test_no_backup_at_all_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"junk", b"PK\3\4" * 100, b"age-encryption.org/v1"):
        (tmp_path / "file").write_bytes(content)
        with (
            (tmp_path / "file").open("rb") as file,
            pytest.raises(BackupError, match="not a backup of Neocloud"),
        ):
            needs_passphrase(file)
    (tmp_path / "file").write_bytes(b"age-encryption.org/v1\n-> X25519 " + b"a" * 10_000_000)
    with (tmp_path / "file").open("rb") as file, pytest.raises(BackupError, match="header has no end"):
        needs_passphrase(file)


async def test_a_changed_byte_is_refused(backup: Path, refused: Refused) -> None:
    content = bytearray(backup.read_bytes())
    for place in (200, len(content) // 2, len(content) - 1):
        content[place] ^= 1
        backup.write_bytes(content)
        assert "The backup is damaged" in refused(backup)
        content[place] ^= 1


async def test_bytes_after_its_end_are_refused(backup: Path, refused: Refused) -> None:
    backup.write_bytes(backup.read_bytes() + b"x")
    assert "The backup is damaged" in refused(backup)


async def test_another_key_is_refused(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(new_key())
    (tmp_path / "other").chmod(0o600)
    with pytest.raises(BackupError, match="not made with this key file"):
        restored(backup, read_keys(tmp_path / "other"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "missing"])
async def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "cloud.age"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    with pytest.raises(BackupError, match="is not a regular file|cannot be read"):
        open_regular(path)


OUTSIDE = f"/tmp/neocloud-outside-{os.urandom(8).hex()}"
ENTRIES = {
    "a link": (tarfile.SYMTYPE, "tls/server.pem", 0),
    "a hard link": (tarfile.LNKTYPE, "tls/server.pem", 0),
    "a device": (tarfile.CHRTYPE, "tls/server.pem", 0),
    "a fifo": (tarfile.FIFOTYPE, "tls/server.pem", 0),
    "a folder": (tarfile.DIRTYPE, "tls", 0),
    "a sparse file": (tarfile.GNUTYPE_SPARSE, "tls/server.pem", 0),
    "a long name": (tarfile.GNUTYPE_LONGNAME, "././@LongLink", 100),
    "a long header": (tarfile.XHDTYPE, "././@PaxHeader", 1 << 40),
    "a way out": (tarfile.REGTYPE, "../outside", 1),
    "an absolute name": (tarfile.REGTYPE, OUTSIDE, 1),
    "another name": (tarfile.REGTYPE, "server.json", 1),
    "a file that is there twice": (tarfile.REGTYPE, "store.key", 32),
    "a file without end": (tarfile.REGTYPE, "tls/server.pem", 1 << 60),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("is_listed", [False, True], ids=["unlisted", "listed"])
async def test_an_archive_that_would_do_harm_is_refused(
    entry: str, is_listed: bool, backup: Path, keys: Keys, refused: Refused, tmp_path: Path
) -> None:
    kind, name, size = ENTRIES[entry]
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, "/etc/passwd"

    def listed(manifest: dict[str, Any]) -> None:
        if is_listed:
            manifest["files"].setdefault(name, {"size": size, "sha256": ""})

    files = with_manifest(members(plain(backup, keys)), listed)
    header = info.tobuf(tarfile.GNU_FORMAT)
    body = packed(files).rstrip(b"\0")
    body += bytes(-len(body) % 512) + header + bytes(min(size, 1024)) + bytes(2048)
    said = refused(encrypted(tmp_path / "hostile.age", keys, body))
    if is_listed and name not in (*DATABASES, *FILES):
        reason = f"The backup cannot be used: '{name}' in it is not a file of a cloud's state"
    elif kind != tarfile.REGTYPE:
        reason = f"The backup is damaged: '{name}' in it is not a regular file"
    elif is_listed and size > MAX_FILE_BYTES:
        reason = f"The backup cannot be used: {name} in it is too large"
    else:
        reason = f"The backup cannot be used: '{name}' in it is not in its list of files, or is there twice"
    assert said.startswith(reason), said
    assert not (tmp_path / "outside").exists() and not Path(OUTSIDE).exists()


def newer_format(manifest: dict[str, Any]) -> None:
    manifest |= {"format": 99, "release": "9.1.0"}


def newer_schema(manifest: dict[str, Any]) -> None:
    manifest |= {"schema": "0999", "release": "9.1.0"}


def large(manifest: dict[str, Any]) -> None:
    manifest["files"]["gateway/key"]["size"] = MAX_FILE_BYTES + 1


def another_digest(manifest: dict[str, Any]) -> None:
    manifest["files"]["gateway/key"]["sha256"] = "0" * 64


def another_size(manifest: dict[str, Any]) -> None:
    manifest["files"]["gateway/key"]["size"] += 1


def without_the_key(manifest: dict[str, Any]) -> None:
    del manifest["files"]["store.key"]


def one_more(manifest: dict[str, Any]) -> None:
    manifest["files"]["tls/server.key"] = {"size": 1, "sha256": ""}


def no_numbers(manifest: dict[str, Any]) -> None:
    manifest["resources"] = {"kind": "many"}


def no_files(manifest: dict[str, Any]) -> None:
    manifest["files"] = []


def endless(manifest: dict[str, Any]) -> None:
    manifest["format"] = float("inf")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (newer_format, "made by Neocloud 9.1.0, which is newer .*Restore it with Neocloud 9.1.0"),
        (newer_schema, "the schema of state.db in it is not what its list of files says"),
        (large, "gateway/key in it is too large"),
        (another_digest, "gateway/key in it is not what its list of files says"),
        (another_size, "gateway/key in it has another size"),
        (without_the_key, "store.key is missing"),
        (one_more, "tls/server.key is missing"),
        (no_numbers, "its list of files cannot be read"),
        (no_files, "its list of files cannot be read"),
        (endless, "its list of files cannot be read"),
    ],
)
async def test_a_list_of_files_that_does_not_fit_is_refused(
    change: Callable[[dict[str, Any]], None], said: str, backup: Path, keys: Keys, refused: Refused
) -> None:
    files = with_manifest(members(plain(backup, keys)), change)
    answer = refused(encrypted(backup, keys, packed(files)))
    assert re.search(said, answer), answer


async def test_a_database_of_a_newer_release_is_refused(
    backup: Path, keys: Keys, refused: Refused, tmp_path: Path
) -> None:
    files = members(plain(backup, keys))
    database = tmp_path / "newer.db"
    database.write_bytes(files["state.db"])
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0999'")
    connection.close()
    files["state.db"] = database.read_bytes()
    answer = refused(encrypted(backup, keys, packed(with_manifest(files, newer_schema))))
    assert "made by Neocloud 9.1.0, which is newer (schema 0999)" in answer


VERSIONS = {
    "a view without end": "CREATE VIEW alembic_version AS"
    " WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS version_num FROM n",
    "a view that counts": "CREATE VIEW alembic_version AS"
    " WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) AS version_num FROM n",
    "a large row": "CREATE TABLE alembic_version (x, version_num AS (hex(zeroblob(1000000))));"
    " INSERT INTO alembic_version (x) VALUES (1)",
    "no table": "",
}


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_schema_that_takes_time_or_memory_is_refused(
    version: str, backup: Path, keys: Keys, refused: Refused, tmp_path: Path
) -> None:
    files = members(plain(backup, keys))
    database = tmp_path / "hostile.db"
    database.write_bytes(files["state.db"])
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(f"DROP TABLE alembic_version; {VERSIONS[version]}")
    files["state.db"] = database.read_bytes()
    answer = refused(encrypted(backup, keys, packed(with_manifest(files, unchanged))))
    assert "state.db in it is not the database of a cloud" in answer


@pytest.mark.parametrize("content", [b"", b"junk" * 1000], ids=["empty", "junk"])
async def test_a_database_that_is_none_is_refused(
    content: bytes, backup: Path, keys: Keys, refused: Refused
) -> None:
    files = members(plain(backup, keys)) | {"state.db": content}
    assert "state.db in it" in refused(encrypted(backup, keys, packed(with_manifest(files, unchanged))))


LIMITED = """
import resource, sys
from pathlib import Path
from neocloud.control_plane.backup.archive import BackupError
from neocloud.control_plane.backup.keys import read_keys
from neocloud.control_plane.backup.restore import check_backup

pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    bytearray(2 * int(sys.argv[3]))
    sys.exit("There is no limit.")
except MemoryError:
    pass
try:
    check_backup(Path(sys.argv[1]), read_keys(Path(sys.argv[2])), lambda _: None)
except BackupError as error:
    print(error)
"""
SPARE_BYTES = 128 * 1024**2


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        (tarfile.REGTYPE, "manifest.json", "does not begin with its list of files"),
        (tarfile.XHDTYPE, "././@PaxHeader", "is not a regular file"),
        (tarfile.REGTYPE, "gateway/key", "has another size"),
    ],
)
async def test_files_that_grow_without_end_take_no_memory(
    kind: bytes, name: str, said: str, backup: Path, keys: Keys, tmp_path: Path
) -> None:
    """They are twice as large as the memory, in a megabyte of archive."""
    files = with_manifest(members(plain(backup, keys)), unchanged)
    first = packed({"manifest.json": files["manifest.json"]}).rstrip(b"\0")
    first += bytes(-len(first) % 512)
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, 2 * SPARE_BYTES
    packer = zlib.compressobj(9, wbits=zlib.MAX_WBITS + 16)
    bomb = packer.compress((first if name == "gateway/key" else b"") + info.tobuf(tarfile.GNU_FORMAT))
    bomb += b"".join(packer.compress(bytes(1024**2)) for _ in range(info.size // 1024**2)) + packer.flush()
    assert len(bomb) < 1024**2
    with backup.open("wb") as file:
        keys.encrypt(Content(bomb), file)  # type: ignore[arg-type]
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, backup, tmp_path / "backup.key", str(SPARE_BYTES)],
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TMPDIR": str(tmp_path)},
        text=True,
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0 and said in ran.stdout, ran.stderr


async def test_a_backup_that_would_fill_the_disk_is_refused_first(
    backup: Path, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "free_bytes", lambda _: 1000)
    with pytest.raises(BackupError, match=f"No space is left for the restored state in {tmp_path}"):
        restored(backup, keys, tmp_path / "new")
    assert not (tmp_path / "new").exists()
