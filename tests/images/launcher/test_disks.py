"""CMP-13: disk files are made and grown, never shrunk, and only such as stand for themselves."""

import shutil
import subprocess
from pathlib import Path

import pytest
from launcher import rights
from launcher.desired import Disk
from launcher.disks import DiskError, describe, firmware_of, has_esp, prepare

pytestmark = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-utils")
MIB = 2**20


@pytest.fixture(autouse=True)
def as_this_user(monkeypatch):
    """What QEMU's user may do is tested in a real pod: tests/security/test_machine_sandbox.py."""
    monkeypatch.setattr(rights, "unprivileged", lambda command: command)
    monkeypatch.setattr(rights, "give", lambda path, mode=None: None)


def disk(path: Path, size: int, *, is_boot: bool = False) -> Disk:
    return Disk("d", path / "disk.qcow2", size, is_boot=is_boot)


def qemu_img(*words: object) -> None:
    subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True)


def test_a_blank_disk_is_made_then_grows_and_keeps_its_size(tmp_path):
    for wanted, found in ((MIB, MIB), (3 * MIB, 3 * MIB), (MIB, 3 * MIB)):
        prepare(disk(tmp_path, wanted))
        assert describe(tmp_path / "disk.qcow2")["virtual-size"] == found


def test_a_boot_disk_is_never_made_up(tmp_path):
    with pytest.raises(DiskError, match="has no file"):
        prepare(disk(tmp_path, MIB, is_boot=True))


def test_a_disk_that_shows_another_file_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(b"x" * MIB)
    qemu_img("create", "-f", "qcow2", "-F", "raw", "-b", tmp_path / "secret", tmp_path / "disk.qcow2")
    with pytest.raises(DiskError, match="stands for itself"):
        prepare(disk(tmp_path, MIB))


def test_what_is_not_qcow2_is_refused(tmp_path):
    (tmp_path / "disk.qcow2").write_bytes(b"x" * MIB)
    with pytest.raises(DiskError, match="not a qcow2 file"):
        prepare(disk(tmp_path, MIB))


def test_firmware_by_the_partition_table(tmp_path):
    raw, file = tmp_path / "raw", tmp_path / "disk.qcow2"
    gpt = bytearray(MIB)
    gpt[510:512] = b"\x55\xaa"
    gpt[512:520] = b"EFI PART"
    legacy = bytes(gpt)
    gpt[1024 + 128 : 1024 + 144] = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")
    for content, firmware in ((bytes(gpt), "uefi"), (legacy, "bios")):
        raw.write_bytes(content)
        qemu_img("convert", "-f", "raw", "-O", "qcow2", raw, file)
        assert firmware_of(file, tmp_path) == firmware


def test_an_esp_in_an_mbr_counts_and_an_empty_disk_does_not():
    mbr = bytearray(512)
    assert not has_esp(bytes(mbr))
    assert not has_esp(b"")
    mbr[450 + 16] = 0xEF
    assert has_esp(bytes(mbr))
