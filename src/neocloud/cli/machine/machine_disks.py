"""The disks that machines start from, `<home>/images/machine/<name>/`, and taking in one from elsewhere.

A disk from elsewhere is checked by qemu-img before and after it is copied: one that refers to another file
could show a tenant any file of this machine.
"""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

from neocloud.cli.output import JsonObject
from neocloud.client.errors import ClientError

FORMATS = ("qcow2", "raw")
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
BOOT_SIGNATURE = b"\x55\xaa"
SECTOR = 512
_CONVERT = "Make it stand for itself with `qemu-img convert`"
_REFERENCES = {"backing-filename": "a backing file", "full-backing-filename": "a backing file"}


def disks(home: Path) -> list[JsonObject]:
    """What is said about each, by name."""
    return [json.loads(file.read_text()) for file in sorted(_folder(home).glob("*/image.json"))]


def import_disk(file: Path, home: Path, *, name: str, family: str, title: str) -> JsonObject:
    """Copy it into the catalogue; returns what is now said about it. Raises ClientError."""
    for value in (name, family):
        if not NAME.fullmatch(value):
            raise ClientError(
                "INVALID_ARGUMENT",
                f"{value!r} is not a name for an image",
                "Use lower case letters, digits, dots and dashes, at most 63",
            )
    found = check_disk(file)
    folder = _folder(home) / name
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / "disk.qcow2.new"
    try:
        # Never by its content: a raw disk whose first bytes look like qcow2 would be read as one.
        _qemu_img("convert", "-f", found["format"], "-O", "qcow2", str(file), str(new), about=file)
        copied = check_disk(new)
        new.replace(folder / "disk.qcow2")
    finally:
        new.unlink(missing_ok=True)
    facts = {
        "name": name,
        "family": family,
        "title": title,
        "version": _digest(folder / "disk.qcow2"),
        "architecture": "amd64",
        "disk": "disk.qcow2",
        "minimum_bytes": copied["virtual-size"],
    }
    description = folder / "image.json.new"
    description.write_text(json.dumps(facts, indent=2) + "\n")
    description.replace(folder / "image.json")
    return facts


def check_disk(file: Path) -> JsonObject:
    """What qemu-img says about it. Raises ClientError when it cannot be the disk of a machine."""
    found = json.loads(_qemu_img("info", "--output=json", str(file), about=file))
    if found["format"] not in FORMATS:
        raise _refused(file, f"it is of the format {found['format']}", "Convert it to qcow2 with qemu-img")
    for key, what in _REFERENCES.items():
        if found.get(key):
            raise _refused(file, f"it has {what}", _CONVERT)
    details = (found.get("format-specific") or {}).get("data") or {}
    if "data-file" in details:
        raise _refused(file, "its data lie in another file", _CONVERT)
    if "encrypt" in details:
        raise _refused(file, "it is encrypted", "Decrypt it with `qemu-img convert`")
    if found["format"] == "raw" and not _can_start(file):
        raise _refused(file, "it is neither qcow2 nor a raw disk with a boot sector", "Choose another file")
    return found


def _can_start(file: Path) -> bool:
    """Anything is a raw disk for qemu-img; one that starts by itself has a boot sector, under GPT too."""
    with file.open("rb") as content:
        return content.read(SECTOR)[-2:] == BOOT_SIGNATURE


def _qemu_img(*arguments: str, about: Path) -> str:
    if shutil.which("qemu-img") is None:
        raise ClientError(
            "FAILED_PRECONDITION", "qemu-img is not installed", "Install it: apt-get install qemu-utils"
        )
    done = subprocess.run(["qemu-img", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise _refused(about, done.stderr.strip() or f"qemu-img {arguments[0]} failed", "Is the file whole?")
    return done.stdout


def _refused(file: Path, why: str, next_step: str) -> ClientError:
    return ClientError("INVALID_ARGUMENT", f"{file} cannot be used: {why}", next_step)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:12]


def _folder(home: Path) -> Path:
    return home / "images" / "machine"
