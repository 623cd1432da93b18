"""CMP-13: disk files are made and grown, never shrunk, and only such as stand for themselves."""

import shutil
import subprocess
from pathlib import Path

import pytest
from launcher import disks, rights
from launcher.desired import Disk
from launcher.disks import DiskError, describe, firmware_of, has_esp, prepare

pytestmark = [
    pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-utils"),
    pytest.mark.slow,
]
MIB = 2**20


@pytest.fixture(autouse=True)
def as_this_user(monkeypatch):
    """Keep this user: the rights of QEMU's user are tested in tests/e2e/security/test_machine_sandbox.py."""
    monkeypatch.setattr(rights, "unprivileged", lambda command: command)
    monkeypatch.setattr(rights, "give", lambda path, mode=None: None)
    monkeypatch.setattr(rights, "give_open", lambda descriptor, mode: None)


def disk(path: Path, size: int, *, is_boot: bool = False, key: str = "", read_only: bool = False) -> Disk:
    return Disk("d", path / "disk.qcow2", size, is_boot=is_boot, key=key, read_only=read_only)


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
        assert firmware_of(disk(tmp_path, MIB, is_boot=True), tmp_path) == firmware


def test_an_esp_in_an_mbr_counts_and_an_empty_disk_does_not():
    mbr = bytearray(512)
    assert not has_esp(bytes(mbr))
    assert not has_esp(b"")
    mbr[450 + 16] = 0xEF
    assert has_esp(bytes(mbr))


KEY = "0123456789abcdef" * 4
WORDS = b"what a tenant wrote " * 3000


def write(disk: Disk, content: bytes, at: int = 0) -> None:
    """Write as QEMU does, with the disk's key."""
    source = disk.path.parent / "written"
    source.write_bytes(content)
    qemu_io(disk, f"write -s {source} {at} {len(content)}")
    source.unlink()


def has(disk: Disk, content: bytes, at: int = 0) -> bool:
    copy = disk.path.parent / "read"
    words = ["--object", f"secret,id=key-d,data={disk.key}"] if disk.key else []
    encrypt = ",encrypt.format=luks,encrypt.key-secret=key-d" if disk.key else ""
    image = f"driver=qcow2,file.filename={disk.path}{encrypt}"
    qemu_img("convert", *words, "--image-opts", image, "-O", "raw", copy)
    found = copy.read_bytes()[at : at + len(content)]
    copy.unlink()
    return found == content


def qemu_io(disk: Disk, command: str) -> None:
    words = ["--object", f"secret,id=key-d,data={disk.key}"] if disk.key else []
    encrypt = ",encrypt.format=luks,encrypt.key-secret=key-d" if disk.key else ""
    image = f"driver=qcow2,file.filename={disk.path}{encrypt}"
    subprocess.run(["qemu-io", *words, "-c", command, "--image-opts", image], check=True, capture_output=True)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory) -> Path:
    """An encrypted disk of 8 MiB: qemu-img takes seconds to create one, whatever its size."""
    folder = tmp_path_factory.mktemp("encrypted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rights, "unprivileged", lambda command: command)
        patch.setattr(rights, "give", lambda path, mode=None: None)
        patch.setattr(rights, "give_open", lambda descriptor, mode: None)
        write(prepare(disk(folder, 8 * MIB, key=KEY)), WORDS)
    return folder / "disk.qcow2"


def test_nothing_of_an_encrypted_disk_can_be_read_without_its_key(tmp_path, encrypted):
    shutil.copy(encrypted, tmp_path)
    made = prepare(disk(tmp_path, 8 * MIB, key=KEY))
    assert has(made, WORDS)
    held = made.path.read_bytes()
    assert WORDS[:20] not in held and KEY.encode() not in held
    with pytest.raises(subprocess.CalledProcessError):
        has(disk(tmp_path, 8 * MIB, key="f" * 64), WORDS)
    with pytest.raises(DiskError, match="its key is lost"):
        prepare(disk(tmp_path, 8 * MIB))


def test_an_encrypted_disk_grows_and_keeps_its_data(tmp_path, encrypted):
    shutil.copy(encrypted, tmp_path)
    grown = prepare(disk(tmp_path, 16 * MIB, key=KEY))
    assert describe(grown.path)["virtual-size"] == 16 * MIB
    assert has(grown, WORDS)
    assert prepare(disk(tmp_path, 16 * MIB, key=KEY, read_only=True)).key == KEY


def test_a_copy_of_an_image_is_encrypted_before_its_first_use(tmp_path, monkeypatch):
    """Its key is in no argument of the programs that do it."""
    plain = prepare(disk(tmp_path, 4 * MIB))
    write(plain, WORDS)
    assert prepare(disk(tmp_path, 4 * MIB, key=KEY, read_only=True)).key == "", "shown as it is"
    (tmp_path / "disk.new").write_bytes(b"left by an attempt that was cut off")
    commands: list[list[str]] = []
    monkeypatch.setattr(rights, "unprivileged", lambda command: commands.append(command) or command)
    made = prepare(disk(tmp_path, 8 * MIB, is_boot=True, key=KEY))
    firmware_of(made, tmp_path)
    assert {command[1] for command in commands} == {"info", "convert", "resize", "dd"}
    assert not any(KEY in word for command in commands for word in command)
    assert describe(made.path)["encrypted"] and describe(made.path)["virtual-size"] == 8 * MIB
    assert has(made, WORDS) and WORDS[:20] not in made.path.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["disk.qcow2"]


def test_a_copy_that_cannot_be_encrypted_stays_as_it_is(tmp_path, monkeypatch):
    write(prepare(disk(tmp_path, 4 * MIB)), WORDS)
    monkeypatch.setattr(disks, "creation_options", lambda disk_id: "encrypt.format=none-such")
    with pytest.raises(DiskError, match="convert failed"):
        prepare(disk(tmp_path, 4 * MIB, key=KEY))
    assert has(disk(tmp_path, 4 * MIB), WORDS)
    assert [path.name for path in tmp_path.iterdir()] == ["disk.qcow2"]


def test_a_measurement_of_qemu_img_that_fails_is_repeated(tmp_path, monkeypatch):
    program = tmp_path / "qemu-img"
    count = 'echo x >> "$0.count"; [ $(wc -l < "$0.count") -gt 2 ] || '
    program.write_text(f"#!/bin/sh\n{count}{{ echo Unable to get accurate CPU usage >&2; exit 1; }}\n")
    program.chmod(0o755)
    monkeypatch.setattr(rights, "unprivileged", lambda command: [str(program), *command[1:]])
    prepare(disk(tmp_path, MIB, key=KEY))
    assert (tmp_path / "qemu-img.count").read_text().count("x") == 3
