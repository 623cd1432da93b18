"""The program of the pod that turns a tenant's file into the disk of an image. Standard library only: it is
mounted into a pod of the launcher's image, which may be one of an earlier release.

The file is hostile: qcow2 can name other files to read. Its head is checked here before qemu-img opens it.
qemu-img gets no name from it, and runs as a user without rights, within limits, in a pod without a network.

    FOLDER/incoming/disk     what the control plane writes
    FOLDER/incoming/whole    size and SHA-256 of it, once it is whole
    FOLDER/disk.qcow2        the result, encrypted with KEY, complete or absent

The last line of the log is the result, as JSON.
"""

import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

FOLDER, KEY = Path("/image"), Path("/etc/neocloud/import/key")
INCOMING, WHOLE, DISK = "incoming/disk", "incoming/whole", "disk.qcow2"
OUTPUT = "output"
QEMU_ID = 60700
"""User and group of qemu-img, as of QEMU in the launcher."""
MAGIC = b"QFI\xfb"
HEAD = struct.Struct(">4sIQIIQIIQQIIQ")
"""Magic, version, offset and length of the backing file's name, cluster bits, size, encryption, and the
tables, of which no value is needed."""
INCOMPATIBLE_AT, HEAD_BYTES = 72, 512
HARMLESS_FEATURES = 0b11001
"""Not closed properly, another compression, extended tables. Bit 2 is data in another file."""
BOOT_SIGNATURE = b"\x55\xaa"
LARGEST_DISK_BYTES = 2 * 1024**4
LARGEST_STORED_BYTES = 64 * 1024**3
SPARE_BYTES = 2 * 1024**3
"""Room that is left on the disk of the host."""
CPU_SECONDS = 3600
TOO_LARGE = os.strerror(errno.EFBIG)
UNSURE, TRIES = "Unable to get accurate CPU usage", 10
"""LUKS measures how fast the processor is, and gives up where the kernel says that no time has passed."""
LUKS = 2
ENCRYPTION = {
    **{"format": "luks", "key-secret": "key", "iter-time": "10"},
    **{"cipher-alg": "aes-256", "cipher-mode": "xts", "ivgen-alg": "plain64", "hash-alg": "sha256"},
}
"""Options as for the disks of machines; a slow derivation would protect no random key."""
LOOK_SECONDS = 0.2
BLOCK_BYTES = 1024**2


class ImportRefused(Exception):
    """The file cannot be a disk of machines; the message completes "The object cannot be used: it "."""


def main() -> int:
    signal.signal(signal.SIGTERM, end)  # which does not end the first process of a pod by itself
    try:
        if not (FOLDER / DISK).exists():
            make_disk()
        shutil.rmtree(FOLDER / OUTPUT, ignore_errors=True)
        shutil.rmtree(FOLDER / "incoming", ignore_errors=True)
        return say(size_bytes=checked_head(FOLDER / DISK, LUKS)[1])
    except ImportRefused as error:
        (FOLDER / INCOMING).write_bytes(b"")  # it takes no more room; the pod stays to say why
        return say(problem=str(error))


def end(*_: object) -> None:
    sys.exit(143)


def say(**result: object) -> int:
    sys.stdout.write(f"{json.dumps(result)}\n")
    sys.stdout.flush()
    return 0


def make_disk() -> None:
    """Wait for the whole file, check it and convert it. Raises Refused."""
    output = FOLDER / OUTPUT
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(mode=0o700)
    os.chown(output, QEMU_ID, QEMU_ID)
    (FOLDER / "incoming").mkdir(exist_ok=True)
    check_whole(FOLDER / INCOMING, wait_for_whole())
    kind, size = checked_head(FOLDER / INCOMING)
    if size > LARGEST_DISK_BYTES:
        raise ImportRefused(f"is a disk of {size:,} bytes; at most {LARGEST_DISK_BYTES:,} are allowed")
    convert(kind, FOLDER / INCOMING, output / DISK)
    found = (output / DISK).lstat()
    same = ("qcow2", -(-size // 512) * 512)
    if not stat.S_ISREG(found.st_mode) or checked_head(output / DISK, LUKS) != same:
        raise ImportRefused("was not converted to a disk of the same size")
    os.chown(output / DISK, 0, 0)
    (output / DISK).chmod(0o644)
    sync(output / DISK)
    (output / DISK).rename(FOLDER / DISK)
    sync(FOLDER)


def wait_for_whole() -> dict[str, Any]:
    while True:
        try:
            return json.loads((FOLDER / WHOLE).read_text())
        except (FileNotFoundError, ValueError):  # not there, or half written
            time.sleep(LOOK_SECONDS)


def check_whole(file: Path, wanted: dict[str, Any]) -> None:
    with file.open("rb") as content:
        digest = hashlib.sha256()
        while block := content.read(BLOCK_BYTES):
            digest.update(block)
        if (content.tell(), digest.hexdigest()) != (wanted["size_bytes"], wanted["sha256"]):
            raise ImportRefused("arrived damaged; create the image again")


def checked_head(file: Path, encryption: int = 0) -> tuple[str, int]:
    """Return the format and the size of a disk, which may have this encryption. Raises Refused, also where it
    would read other files."""
    with file.open("rb") as content:
        head = content.read(HEAD_BYTES)
        return (
            ("qcow2", qcow2_size(head, encryption))
            if head.startswith(MAGIC)
            else ("raw", raw_size(head, content))
        )


def qcow2_size(head: bytes, allowed: int) -> int:
    if len(head) < HEAD_BYTES:
        raise ImportRefused("is cut off")
    _, version, backing, _, _, size, encryption, *_ = HEAD.unpack_from(head)
    features = 0
    if version == 3:
        (features,) = struct.unpack_from(">Q", head, INCOMPATIBLE_AT)
    elif version != 2:
        raise ImportRefused(f"is qcow2 of version {version}")
    if backing:
        raise ImportRefused("has a backing file. Make it stand for itself with `qemu-img convert`")
    if features & ~HARMLESS_FEATURES:
        raise ImportRefused("has its data in another file, or is damaged. Convert it with `qemu-img convert`")
    if encryption not in (0, allowed):
        raise ImportRefused("is encrypted. Decrypt it with `qemu-img convert`")
    if not size:
        raise ImportRefused("is an empty disk")
    return size


def raw_size(head: bytes, content: BinaryIO) -> int:
    if head[510:512] != BOOT_SIGNATURE:
        raise ImportRefused("is neither qcow2 nor a raw disk with a boot sector")
    return content.seek(0, os.SEEK_END)


def convert(kind: str, source: Path, target: Path) -> None:
    """Raises Refused. The format is named, so that nothing is guessed from the content of a raw disk."""
    free = shutil.disk_usage(target.parent).free - SPARE_BYTES
    most = max(0, min(LARGEST_STORED_BYTES, free))
    opened: dict[str, object] = {"driver": kind, "file": {"driver": "file", "filename": str(source)}}
    if kind == "qcow2":
        opened["backing"] = None
    options = ",".join(f"encrypt.{name}={value}" for name, value in ENCRYPTION.items())
    key = open_key()
    words = ["qemu-img", "convert", "-q", "-W", "-O", "qcow2", "-o", options]
    words += ["--object", f"secret,id=key,format=raw,file=/proc/self/fd/{key}"]
    words += [f"json:{json.dumps(opened)}", str(target)]
    bounds = [f"--fsize={most}", f"--cpu={CPU_SECONDS}", "--core=0"]
    limited = ["prlimit", *bounds, "--", *unprivileged(words)]
    done = run_with(key, limited)
    if TOO_LARGE in done.stderr or -done.returncode == signal.SIGXCPU:
        raise ImportRefused(f"takes more than {most:,} bytes, or an hour, to be stored")
    if done.returncode:
        raise ImportRefused(f"cannot be read by qemu-img: {done.stderr.strip()[-300:] or done.returncode}")


def run_with(key: int, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that inherits the key, again where it could not measure the time."""
    nothing, left = subprocess.DEVNULL, TRIES
    while True:
        done = subprocess.run(
            command, stdin=nothing, capture_output=True, text=True, check=False, pass_fds=(key,)
        )
        left -= 1
        if UNSURE not in done.stderr or not left:
            break
    os.close(key)
    return done


def open_key() -> int:
    """Return a descriptor of a file in memory with the key, which qemu-img's user may read."""
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    os.write(descriptor, KEY.read_bytes())
    os.fchown(descriptor, QEMU_ID, QEMU_ID)
    os.fchmod(descriptor, 0o400)
    return descriptor


def unprivileged(command: list[str]) -> list[str]:
    """Return the command as QEMU's user, without capabilities."""
    words = ["setpriv", f"--reuid={QEMU_ID}", f"--regid={QEMU_ID}", "--clear-groups", "--no-new-privs"]
    return [*words, "--inh-caps=-all", "--bounding-set=-all", "--", *command]


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
