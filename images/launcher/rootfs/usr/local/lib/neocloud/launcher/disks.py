"""Prepare the machine's disk files: create new ones, grow small ones, never shrink one."""

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

from launcher import rights
from launcher.desired import Disk

_ESP_GPT = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")
_ESP_MBR = 0xEF
_SECTOR = 512
_HEAD_SECTORS = 34  # both partition tables


class DiskError(Exception):
    """The message names the disk and says what is wrong with it."""


def prepare(disk: Disk) -> None:
    """Make the file exist, owned by QEMU and as large as desired. Its data is never changed.

    A read-only disk keeps its owner; the engine makes such files readable.
    """
    if not disk.read_only:
        rights.let_through(disk.path.parent)
    if not disk.path.exists():
        if disk.is_boot:
            raise DiskError(
                f"The boot disk {disk.id} has no file {disk.path}; there is nothing to start from."
            )
        _create(disk)
        return
    if not stat.S_ISREG(disk.path.lstat().st_mode):
        raise DiskError(f"Disk {disk.id}: {disk.path} is not a file.")
    if not disk.read_only:
        rights.give(disk.path)
    info = describe(disk.path)
    if info["format"] != "qcow2" or info.get("backing-filename") or _external_data(info):
        raise DiskError(f"Disk {disk.id} is not a qcow2 file that stands for itself.")
    if info["virtual-size"] < disk.size_bytes and not disk.read_only:
        _run(disk, ["resize", "-q", "-f", "qcow2", str(disk.path), str(disk.size_bytes)])


def _create(disk: Disk) -> None:
    """Create the disk under another name first, so that an existing file is a complete disk."""
    new = disk.path.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o644)
    rights.give(new)
    _run(disk, ["create", "-q", "-f", "qcow2", str(new), str(disk.size_bytes)])
    new.replace(disk.path)


def describe(path: Path) -> dict[str, Any]:
    """Return the output of `qemu-img info`; the format is not guessed from the content of the disk."""
    command = rights.unprivileged(["qemu-img", "info", "--output=json", "-f", "qcow2", "-U", str(path)])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DiskError(f"{path} is not a qcow2 file: {done.stderr.strip()}")
    return json.loads(done.stdout)


def firmware_of(path: Path, scratch: Path) -> str:
    """Return `uefi` when the disk has an EFI system partition, else `bios`. QEMU may write in `scratch`."""
    head = scratch / "head"
    command = ["qemu-img", "dd", "-U", "-f", "qcow2", "-O", "raw", f"bs={_SECTOR}", f"count={_HEAD_SECTORS}"]
    command = rights.unprivileged([*command, f"if={path}", f"of={head}"])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DiskError(f"The partition table of {path} cannot be read: {done.stderr.strip()}")
    content = head.read_bytes()
    head.unlink()
    return "uefi" if has_esp(content) else "bios"


def has_esp(head: bytes) -> bool:
    """Whether a GPT or MBR at the start of a disk names an EFI system partition."""
    if head[_SECTOR : _SECTOR + 8] == b"EFI PART":
        entries = range(2 * _SECTOR, len(head), 128)
        return any(head[at : at + 16] == _ESP_GPT for at in entries)
    return (
        any(head[446 + 16 * entry + 4] == _ESP_MBR for entry in range(4)) if len(head) >= _SECTOR else False
    )


def _external_data(info: dict[str, Any]) -> bool:
    return "data-file" in ((info.get("format-specific") or {}).get("data") or {})


def _run(disk: Disk, arguments: list[str]) -> None:
    command = rights.unprivileged(["qemu-img", *arguments])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DiskError(f"Disk {disk.id}: qemu-img {arguments[0]} failed: {done.stderr.strip()}")
