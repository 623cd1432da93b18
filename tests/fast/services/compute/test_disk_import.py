"""Files of tenants become disks of images only where they stand for themselves; qemu-img is real."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from neocloud.services.compute import disk_import
from neocloud.services.compute.disk_import import DISK, INCOMING, WHOLE, ImportRefused

pytestmark = [
    pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-utils"),
    pytest.mark.slow,
]
MIB = 2**20
SECRET = b"of the host" * 1000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The volume of the pod. What another user may do is tested in a real pod."""
    found = tmp_path / "image"
    (found / "incoming").mkdir(parents=True)
    monkeypatch.setattr(disk_import, "FOLDER", found)
    monkeypatch.setattr(disk_import, "unprivileged", lambda command: command)
    monkeypatch.setattr(disk_import, "SPARE_BYTES", 0)
    monkeypatch.setattr(os, "chown", lambda *_: None)
    monkeypatch.setattr(os, "fchown", lambda *_: None)
    monkeypatch.setattr(disk_import, "KEY", tmp_path / "key")
    (tmp_path / "key").write_text("5eed" * 16)
    return found


def decrypted(file: Path, key: Path) -> list[str]:
    """Return how qemu-img opens an encrypted disk."""
    secret = f"secret,id=k,format=raw,file={key}"
    opened = f"driver=qcow2,encrypt.format=luks,encrypt.key-secret=k,file.filename={file}"
    return ["--object", secret, "--image-opts", opened]


def qemu_img(*words: object) -> None:
    subprocess.run(["qemu-img", *map(str, words)], check=True, capture_output=True)


def raw_disk(path: Path, size: int = MIB) -> Path:
    content = bytearray(os.urandom(size))
    content[510:512] = b"\x55\xaa"
    path.write_bytes(content)
    return path


def qcow2_disk(path: Path, *options: str) -> Path:
    raw_disk(path.with_suffix(".raw"))
    qemu_img("convert", "-f", "raw", "-O", "qcow2", *options, path.with_suffix(".raw"), path)
    return path


def bring(file: Path, folder: Path) -> None:
    """Write it as the control plane does."""
    content = file.read_bytes()
    (folder / INCOMING).write_bytes(content)
    facts = {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / WHOLE).write_text(json.dumps(facts))


def result(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert disk_import.main() == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("form", ["raw", "qcow2", "compressed"])
def test_a_disk_is_converted_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    raw = tmp_path / "disk.raw"
    options = ["-c", "-o", "compression_type=zstd"] if form == "compressed" else []
    file = raw_disk(raw) if form == "raw" else qcow2_disk(tmp_path / "disk", *options)
    bring(file, folder)
    assert result(capsys) == {"size_bytes": MIB}
    assert [path.name for path in folder.iterdir()] == [DISK], "copies of the volume have nothing else"
    shown = tmp_path / "shown"
    qemu_img("convert", "-O", "raw", *decrypted(folder / DISK, tmp_path / "key"), shown)
    assert shown.read_bytes() == raw.read_bytes()
    assert raw.read_bytes()[4096:8192] not in (folder / DISK).read_bytes(), "it is encrypted at rest"
    before = (folder / DISK).stat().st_mtime_ns
    assert result(capsys) == {"size_bytes": MIB}, "a pod that is started again says the same"
    assert (folder / DISK).stat().st_mtime_ns == before


def backing(folder: Path) -> Path:
    (folder / "secret").write_bytes(SECRET + bytes(MIB))
    file = folder / "backing"
    qemu_img("create", "-f", "qcow2", "-F", "raw", "-b", folder / "secret", file)
    return file


def external_data(folder: Path) -> Path:
    file = folder / "external"
    qemu_img("create", "-f", "qcow2", "-o", f"data_file={folder / 'data'},data_file_raw=on", file, MIB)
    return file


def other_format(folder: Path) -> Path:
    """A format that names other files; its text would be found by a qemu-img that guesses."""
    (folder / "vmdk").write_text(f'# Disk DescriptorFile\nRW 2048 FLAT "{folder / "secret"}" 0\n' * 20)
    return folder / "vmdk"


def changed(folder: Path, at: int, layout: str, value: int) -> Path:
    content = bytearray(qcow2_disk(folder / "changed").read_bytes())
    struct.pack_into(layout, content, at, value)
    (folder / "changed").write_bytes(content)
    return folder / "changed"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (backing, "has a backing file"),
        (external_data, "data in another file"),
        (lambda folder: changed(folder, 32, ">I", 2), "is encrypted"),
        (other_format, "neither qcow2 nor a raw disk"),
        (lambda folder: changed(folder, 24, ">Q", 2**60), "is a disk of 1,152,921,504,606,846,976 bytes"),
        (lambda folder: changed(folder, 24, ">Q", 0), "is an empty disk"),
        (lambda folder: changed(folder, 72, ">Q", 1 << 40), "data in another file, or is damaged"),
        (lambda folder: changed(folder, 4, ">I", 9), "qcow2 of version 9"),
        (lambda folder: changed(folder, 36, ">I", 2**32 - 1), "cannot be read by qemu-img"),
    ],
)
def test_what_reads_other_files_or_is_no_disk_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], make, said: str
) -> None:
    bring(make(tmp_path), folder)
    assert said in str(result(capsys)["problem"])
    assert not (folder / DISK).exists() and not (folder / INCOMING).stat().st_size


def test_the_head_is_not_all_that_stands_between(folder: Path, tmp_path: Path) -> None:
    """qemu-img opens no backing file, also if the check of the head were passed."""
    file = backing(tmp_path)
    (folder / "output").mkdir()
    disk_import.convert("qcow2", file, folder / "output" / DISK)
    disk = decrypted(folder / "output" / DISK, tmp_path / "key")
    qemu_img("convert", "-O", "raw", *disk, tmp_path / "shown")
    assert b"of the host" not in (tmp_path / "shown").read_bytes()


def test_a_small_file_does_not_become_a_large_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "output").mkdir()
    monkeypatch.setattr(disk_import, "LARGEST_STORED_BYTES", MIB // 2)
    with pytest.raises(ImportRefused, match="takes more than 524,288 bytes"):
        disk_import.convert("qcow2", qcow2_disk(tmp_path / "disk"), folder / "output" / DISK)


def test_other_bytes_than_were_sent_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring(raw_disk(tmp_path / "disk"), folder)
    with (folder / INCOMING).open("r+b") as file:
        file.seek(MIB // 2)
        file.write(b"x")
    assert "arrived damaged" in str(result(capsys)["problem"])
