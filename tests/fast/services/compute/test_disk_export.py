"""The program that reads a disk for its export: the file is a plain qcow2 of the same content, at any offset,
and never stored. QEMU's programs are real."""

import io
import json
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.services.compute import disk_export
from neocloud.services.compute.disk_export import CLUSTER, ExportedFile, ExportRefused
from tests.fast.services.compute.encrypted_disks import encrypt_disk

pytestmark = [
    pytest.mark.skipif(shutil.which("qemu-nbd") is None, reason="needs qemu-utils"),
    pytest.mark.slow,
]
MIB = 2**20
DISK_BYTES = 600 * MIB + 12345 * 512
"""Two tables, and a last cluster that is not whole."""
KEY = "ab" * 32


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the pod sees. What another user may do is tested in a real pod."""
    (tmp_path / "work/nbd").mkdir(parents=True)
    monkeypatch.setattr(disk_export, "WORK", tmp_path / "work")
    monkeypatch.setattr(disk_export, "DISK", tmp_path / "disk.qcow2")
    monkeypatch.setattr(disk_export, "KEY", tmp_path / "key")
    monkeypatch.setattr(disk_export, "unprivileged", lambda command: command)
    monkeypatch.setattr(os, "chown", lambda *_: None)
    monkeypatch.setattr(os, "fchown", lambda *_: None)
    (tmp_path / "key").write_text(KEY)
    return tmp_path


def qemu_img(*words: object) -> str:
    done = subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def content(folder: Path) -> Path:
    """A raw disk with data in some places."""
    made, chance = folder / "raw", random.Random(7)
    with made.open("wb") as file:
        file.truncate(DISK_BYTES)
        for _ in range(50):
            file.seek(chance.randrange(0, DISK_BYTES - 300_000))
            file.write(chance.randbytes(chance.randrange(1, 300_000)))
        file.seek(DISK_BYTES - 700)
        file.write(b"end" * 233)
    return made


@pytest.fixture
def served(folder: Path, content: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    """Serve a disk as the pod does; yield the size of its file."""
    if request.param:
        encrypt_disk(content, folder / "disk.qcow2", folder / "key")
    else:
        qemu_img("convert", "-f", "raw", "-O", "qcow2", content, folder / "disk.qcow2")
    encrypted, size = disk_export.checked_head(folder / "disk.qcow2")
    assert (encrypted, size) == (request.param, DISK_BYTES)
    clusters = disk_export.read_clusters(encrypted, size)
    server = disk_export.start_server(encrypted)
    file = ExportedFile(size, bytes(clusters))
    (folder / "work/clusters").write_bytes(clusters)
    (folder / "work/plan.json").write_text(json.dumps({"disk_size_bytes": size}))
    yield file.size
    server.kill()
    server.wait()


@pytest.mark.parametrize("served", [True, False], indirect=True, ids=["encrypted", "plain"])
@pytest.mark.parametrize("piece", [CLUSTER, 7 * CLUSTER, 16 * MIB])
def test_the_file_is_a_plain_disk_of_the_same_content(
    folder: Path, content: Path, served: int, piece: int
) -> None:
    out = folder / "out.qcow2"
    with out.open("wb") as target:
        for offset in range(0, served, piece):
            part = io.BytesIO()
            disk_export.write_file_bytes(offset, piece, part)
            assert part.tell() == min(piece, served - offset)
            target.write(part.getvalue())
    facts = json.loads(qemu_img("info", "--output=json", out))
    assert facts["virtual-size"] == DISK_BYTES
    assert not facts.keys() & {"encrypted", "backing-filename"}
    assert "No errors" in qemu_img("check", out)
    assert "identical" in qemu_img("compare", "-f", "raw", "-F", "qcow2", content, out)
    assert served < 20 * MIB, "only what has data"


@pytest.mark.parametrize("served", [True], indirect=True)
def test_another_key_opens_nothing(folder: Path, served: int) -> None:
    (folder / "key").write_text("cd" * 32)
    with pytest.raises(ExportRefused, match="cannot be read by qemu-img"):
        disk_export.read_clusters(encrypted=True, size=DISK_BYTES)
    (folder / "key").unlink()
    with pytest.raises(ExportRefused, match="its key is not here"):
        disk_export.read_clusters(encrypted=True, size=DISK_BYTES)


def test_what_would_read_another_file_is_refused(folder: Path) -> None:
    disk = folder / "disk.qcow2"
    with pytest.raises(ExportRefused, match="no machine has ever used it"):
        disk_export.checked_head(disk)
    disk.symlink_to("/etc/passwd")
    with pytest.raises(ExportRefused, match="not a file of this cloud"):
        disk_export.checked_head(disk)
    disk.unlink()
    os.mkfifo(disk)
    with pytest.raises(ExportRefused, match="not a file of this cloud"):
        disk_export.checked_head(disk)
    disk.unlink()
    qemu_img("create", "-f", "qcow2", "-F", "raw", "-u", "-b", "/etc/shadow", disk, "1M")
    with pytest.raises(ExportRefused, match="not a file of this cloud"):
        disk_export.checked_head(disk)
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={folder}/data", disk, "1M")
    with pytest.raises(ExportRefused, match="not a file of this cloud"):
        disk_export.checked_head(disk)
    disk.write_bytes(b"raw" * 1000)
    with pytest.raises(ExportRefused, match="not a file of this cloud"):
        disk_export.checked_head(disk)


def test_a_disk_that_says_it_is_huge_is_refused(folder: Path) -> None:
    disk = folder / "disk.qcow2"
    qemu_img("create", "-f", "qcow2", disk, "1M")
    head = bytearray(disk.read_bytes())
    for size in (0, 2**63 - 1, disk_export.LARGEST_DISK_BYTES + 512):
        struct.pack_into(">Q", head, 24, size)
        disk.write_bytes(head)
        with pytest.raises(ExportRefused, match="bytes; at most"):
            disk_export.checked_head(disk)


def test_extents_beyond_the_disk_are_refused() -> None:
    line = b'{ "start": 0, "length": 131072, "depth": 0, "present": true, "zero": false, "data": true}'
    with pytest.raises(ExportRefused, match="larger than its head says"):
        disk_export.mark_extent(bytearray(2048), line, CLUSTER)


@pytest.mark.parametrize("size", [512, MIB, 512 * MIB, 512 * MIB + 512, 2 * 1024**4])
def test_the_tables_of_any_size_are_right(folder: Path, size: int) -> None:
    """An empty disk of the size is a file of a few clusters that qemu-img finds no fault in."""
    file = ExportedFile.of_empty_disk(size)
    out = folder / "empty.qcow2"
    out.write_bytes(b"".join(bytes(file.cluster(number)) for number in range(file.size // CLUSTER)))
    assert out.stat().st_size == file.size
    assert "No errors" in qemu_img("check", out)
    assert json.loads(qemu_img("info", "--output=json", out))["virtual-size"] == size


def test_a_full_disk_needs_several_blocks_of_counts(folder: Path) -> None:
    """The disk has 6 GiB: the counts of all its clusters do not fit into two blocks."""
    size = 6 * 2**30
    clusters = bytearray(b"\xff" * (size // CLUSTER // 8)) + bytearray(disk_export.GROUP_BYTES)
    file = ExportedFile(size, bytes(clusters))
    out = folder / "full.qcow2"
    with out.open("wb") as target:
        for number in range(file.size // CLUSTER):
            found = file.cluster(number)
            if isinstance(found, int):
                break
            target.write(found)
        target.truncate(file.size)
    assert "No errors" in qemu_img("check", out)
