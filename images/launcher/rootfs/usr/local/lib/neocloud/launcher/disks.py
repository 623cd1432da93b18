"""Prepare the machine's disk files: create new ones, encrypt, grow small ones, never shrink one."""

import fcntl
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher import rights
from launcher.desired import Disk
from launcher.encryption import creation_options, decryption, inherited_key, open_key

_ESP_GPT = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")
_ESP_MBR = 0xEF
_SECTOR = 512
_HEAD_SECTORS = 34  # both partition tables
_UNSURE, _TRIES = "Unable to get accurate CPU usage", 10
"""Before qemu-img encrypts, it measures how fast it derives keys, and gives up when the clock of its thread
stands still meanwhile, as it may on a busy host."""


class DiskError(Exception):
    """The message names the disk and says what is wrong with it."""


def prepare(disk: Disk) -> Disk:
    """Make the file exist, owned by QEMU, encrypted and as large as desired. Its data is never changed.

    Return the disk as it is: a read-only one that was never written to may not be encrypted yet, and has no
    key then. A read-only disk keeps its owner; the engine makes such files readable.
    """
    if disk.read_only:
        _require_file(disk)
        return _checked(disk)
    rights.let_through(disk.path.parent)
    with _locked(disk.path.parent):
        if not disk.path.exists():
            if disk.is_boot:
                raise DiskError(
                    f"The boot disk {disk.id} has no file {disk.path}; there is nothing to start from."
                )
            _create(disk)
            return disk
        _require_file(disk)
        rights.give(disk.path)
        if _checked(disk) != disk:
            _encrypt(disk)
        if describe(disk.path)["virtual-size"] < disk.size_bytes:
            _run(disk, "resize", ["-q", "--image-opts", _options(disk), str(disk.size_bytes)])
    return disk


def _require_file(disk: Disk) -> None:
    try:
        if stat.S_ISREG(disk.path.lstat().st_mode):
            return
    except FileNotFoundError:
        raise DiskError(f"Disk {disk.id} is empty; attach it for writing first.") from None
    raise DiskError(f"Disk {disk.id}: {disk.path} is not a file.")


def _checked(disk: Disk) -> Disk:
    """Return the disk, without its key if its file is not encrypted; raise DiskError if it is no disk."""
    info = describe(disk.path)
    if info["format"] != "qcow2" or info.get("backing-filename") or _external_data(info):
        raise DiskError(f"Disk {disk.id} is not a qcow2 file that stands for itself.")
    if info.get("encrypted") and not disk.key:
        raise DiskError(f"Disk {disk.id} is encrypted and its key is lost; its data cannot be read any more.")
    return disk if info.get("encrypted") else replace(disk, key="")


def _create(disk: Disk) -> None:
    with _new_file(disk) as new:
        words = ["-o", creation_options(disk.id)] if disk.key else []
        _run(disk, "create", ["-q", "-f", "qcow2", *words, str(new), str(disk.size_bytes)])


def _encrypt(disk: Disk) -> None:
    """Replace the file, which is a copy of an image or of a disk without encryption, by an encrypted one."""
    with _new_file(disk) as new:
        words = ["-f", "qcow2", "-O", "qcow2", "-o", creation_options(disk.id), str(disk.path), str(new)]
        _run(disk, "convert", ["-q", "-W", *words])


@contextmanager
def _new_file(disk: Disk) -> Iterator[Path]:
    """Yield another name to write the disk under, so that an existing file is a complete disk."""
    new = disk.path.with_suffix(".new")
    new.unlink(missing_ok=True)
    try:
        new.touch(mode=0o644)
        rights.give(new)
        yield new
        _sync(new)
        new.replace(disk.path)
        _sync(new.parent)
    finally:
        new.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let a call wait for another one that was given up while its program still worked on this disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def describe(path: Path) -> dict[str, Any]:
    """Return the output of `qemu-img info`; the format is not guessed from the content of the disk."""
    command = rights.unprivileged(["qemu-img", "info", "--output=json", "-f", "qcow2", "-U", str(path)])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DiskError(f"{path} is not a qcow2 file: {done.stderr.strip()}")
    return json.loads(done.stdout)


def firmware_of(disk: Disk, scratch: Path) -> str:
    """Return `uefi` when the disk has an EFI system partition, else `bios`. QEMU may write in `scratch`."""
    head = scratch / "head"
    words = ["-U", "--image-opts", "-O", "raw", f"bs={_SECTOR}", f"count={_HEAD_SECTORS}"]
    _run(disk, "dd", [*words, f"if={_options(disk)}", f"of={head}"])
    content = head.read_bytes()
    head.unlink()
    return "uefi" if has_esp(content) else "bios"


def has_esp(head: bytes) -> bool:
    """Return whether a GPT or MBR at the start of a disk names an EFI system partition."""
    if head[_SECTOR : _SECTOR + 8] == b"EFI PART":
        entries = range(2 * _SECTOR, len(head), 128)
        return any(head[at : at + 16] == _ESP_GPT for at in entries)
    return (
        any(head[446 + 16 * entry + 4] == _ESP_MBR for entry in range(4)) if len(head) >= _SECTOR else False
    )


def _external_data(info: dict[str, Any]) -> bool:
    return "data-file" in ((info.get("format-specific") or {}).get("data") or {})


def _options(disk: Disk) -> str:
    """Return the disk's file as `--image-opts` takes it."""
    options = {"driver": "qcow2", "file.driver": "file", "file.filename": str(disk.path).replace(",", ",,")}
    if disk.key:
        options |= {f"encrypt.{name}": value for name, value in decryption(disk.id).items()}
    return ",".join(f"{name}={value}" for name, value in options.items())


def _run(disk: Disk, verb: str, arguments: list[str]) -> None:
    """Run qemu-img, with the disk's key if it has one."""
    key = open_key(disk.key) if disk.key else None
    objects = [] if key is None else ["--object", json.dumps(inherited_key(disk.id, key))]
    command = rights.unprivileged(["qemu-img", verb, *objects, *arguments])
    inherited = () if key is None else (key,)
    try:
        done = _completed(command, inherited)
    finally:
        for descriptor in inherited:
            os.close(descriptor)
    if done.returncode:
        raise DiskError(f"Disk {disk.id}: qemu-img {verb} failed: {done.stderr.strip()}")


def _completed(command: list[str], inherited: tuple[int, ...]) -> subprocess.CompletedProcess[str]:
    for _ in range(_TRIES - 1):
        done = subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=inherited)
        if _UNSURE not in done.stderr:
            return done
    return subprocess.run(command, capture_output=True, text=True, check=False, pass_fds=inherited)
