"""The program of the pod that reads a disk for its export: the bytes of a plain qcow2 file, at any offset.
Standard library only: it is mounted into a pod of the launcher's image, which may be one of an earlier
release.

The disk is hostile, and encrypted: its head is checked here before QEMU's programs open it. They run as a
user without rights, in a pod without a network, and get the key in memory. The file is never stored anywhere:
which clusters have data decides where each byte of it is, so that the same disk is always the same file.

    disk_export.py              find out what there is, serve the disk, and stay
    disk_export.py OFFSET SIZE  write these bytes of the file to the standard output

    WORK/plan.json      size of the disk and of the file, once it can be read
    WORK/clusters       a bit for each cluster of the disk: whether it has data

The last line of the log is the problem, as JSON, where there is one.
"""

import json
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

DISK, WORK, KEY = Path("/image/disk.qcow2"), Path("/work"), Path("/etc/neocloud/export/key")
PLAN, CLUSTERS, SOCKET = "plan.json", "clusters", "nbd/socket"
QEMU_ID = 60700
"""User and group of QEMU's programs, as in the launcher."""
MAGIC = b"QFI\xfb"
HEAD = struct.Struct(">4sIQIIQIIQQIIQ")
INCOMPATIBLE_AT, HEAD_BYTES, LUKS = 72, 512, 2
HARMLESS_FEATURES = 0b11001
CLUSTER = 64 * 1024
ENTRIES = CLUSTER // 8
"""Entries of a table of the file."""
GROUP_BYTES = ENTRIES // 8
"""Bytes with the bits of the clusters that one table of the second level has."""
COUNTS = CLUSTER // 2
"""Entries of a block of reference counts."""
COPIED = 1 << 63
VERSION, CLUSTER_BITS, COUNT_ORDER, HEADER_BYTES = 3, 16, 4, 104
LARGEST_DISK_BYTES = 2 * 1024**4
MOST_READ = 16 * 1024**2
MAP_SECONDS = 1800
LOOK_SECONDS = 0.05
_EXTENT = re.compile(rb'"start": (\d+), "length": (\d+),.*"zero": (true|false), "data": (true|false)')


class ExportRefused(Exception):
    """The disk cannot be exported; the message completes "The disk cannot be exported: it "."""


def main(arguments: list[str]) -> int:
    if arguments:
        offset, size = (int(each) for each in arguments)
        write_file_bytes(offset, min(size, MOST_READ), sys.stdout.buffer)
        return 0
    signal.signal(signal.SIGTERM, end)  # which does not end the first process of a pod by itself
    try:
        encrypted, size = checked_head(DISK)
        (WORK / "nbd").mkdir(mode=0o700, exist_ok=True)
        os.chown(WORK / "nbd", QEMU_ID, QEMU_ID)
        clusters = read_clusters(encrypted, size)
        serving = start_server(encrypted)
        file = ExportedFile(size, bytes(clusters))
        (WORK / CLUSTERS).write_bytes(clusters)
        plan = {"disk_size_bytes": size, "file_size_bytes": file.size}
        (WORK / "draft").write_text(json.dumps(plan))
        (WORK / "draft").rename(WORK / PLAN)
        code = serving.wait()
        raise ExportRefused(f"is not served any more: qemu-nbd ended with {code}")
    except ExportRefused as error:
        sys.stdout.write(json.dumps({"problem": str(error)}) + "\n")
        sys.stdout.flush()
        return 0


def end(*_: object) -> None:
    sys.exit(143)


def checked_head(file: Path) -> tuple[bool, int]:
    """Return whether the disk is encrypted, and its size. Raises Refused, also where it would read others."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        raise ExportRefused("is empty: no machine has ever used it") from None
    if not stat.S_ISREG(found.st_mode):
        raise ExportRefused("is not a file of this cloud")
    with file.open("rb") as content:
        head = content.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
        raise ExportRefused("is not a file of this cloud")
    _, version, backing, _, _, size, encryption, *_ = HEAD.unpack_from(head)
    (features,) = struct.unpack_from(">Q", head, INCOMPATIBLE_AT) if version == VERSION else (0,)
    if version not in (2, VERSION) or backing or features & ~HARMLESS_FEATURES or encryption not in (0, LUKS):
        raise ExportRefused("is not a file of this cloud, or is damaged")
    if not 0 < size <= LARGEST_DISK_BYTES:
        raise ExportRefused(f"has {size:,} bytes; at most {LARGEST_DISK_BYTES:,} can be exported")
    return encryption == LUKS, size


def read_clusters(encrypted: bool, size: int) -> bytearray:
    """Return a bit for each cluster that has data. Raises Refused."""
    clusters = bytearray(-(-size // CLUSTER // 8) + GROUP_BYTES)
    with started("qemu-img", encrypted, ["map", "--output=json"], stdout=subprocess.PIPE) as listing:
        timer = threading.Timer(MAP_SECONDS, listing.kill)
        timer.daemon = True
        timer.start()
        assert listing.stdout is not None, "It is a pipe."
        for line in listing.stdout:
            mark_extent(clusters, line, size)
        timer.cancel()
    if listing.returncode:
        raise ExportRefused(f"cannot be read by qemu-img, which ended with {listing.returncode}")
    return clusters


def mark_extent(clusters: bytearray, line: bytes, size: int) -> None:
    """Set the bits of a line of `qemu-img map`."""
    found = _EXTENT.search(line)
    if found is None or found[3] == b"true" or found[4] == b"false":
        return
    start, length = int(found[1]), int(found[2])
    if start + length > -(-size // CLUSTER) * CLUSTER:
        raise ExportRefused("is larger than its head says")
    first, last = start // CLUSTER, -(-(start + length) // CLUSTER)
    while first < last and first % 8:
        clusters[first // 8] |= 1 << first % 8
        first += 1
    whole = (last - first) // 8
    clusters[first // 8 : first // 8 + whole] = b"\xff" * whole
    for each in range(first + 8 * whole, last):
        clusters[each // 8] |= 1 << each % 8


def start_server(encrypted: bool) -> subprocess.Popen[bytes]:
    """Serve the disk, decrypted, to this pod alone; return once it answers. Raises Refused."""
    path = WORK / SOCKET
    path.unlink(missing_ok=True)
    options = ["--read-only", "--persistent", "--shared=4", f"--socket={path}"]
    server = started("qemu-nbd", encrypted, options)
    while server.poll() is None:
        try:
            connected(path).close()
            return server
        except OSError:
            time.sleep(LOOK_SECONDS)
    raise ExportRefused(f"cannot be opened: qemu-nbd ended with {server.returncode}")


def started(
    program: str, encrypted: bool, options: list[str], stdout: int | None = None
) -> subprocess.Popen[bytes]:
    """Start one of QEMU's programs on the disk, as its user. The format is named, nothing is guessed."""
    opened: dict[str, object] = {
        **{"driver": "qcow2", "read-only": True, "backing": None},
        "file": {"driver": "file", "filename": str(DISK), "locking": "off"},
    }
    keys: list[int] = []
    if encrypted:
        keys = [open_key()]
        opened["encrypt"] = {"format": "luks", "key-secret": "key"}
        options = [*options, "--object", f"secret,id=key,format=raw,file=/proc/self/fd/{keys[0]}"]
    words = [program, *options, f"json:{json.dumps(opened)}"]
    process = subprocess.Popen(
        unprivileged(words), stdin=subprocess.DEVNULL, stdout=stdout or sys.stderr, pass_fds=keys
    )
    for descriptor in keys:
        os.close(descriptor)
    return process


def open_key() -> int:
    """Return a descriptor of a file in memory with the key, which QEMU's user may read. Raises Refused."""
    try:
        key = KEY.read_bytes()
    except FileNotFoundError:
        raise ExportRefused("is encrypted, and its key is not here") from None
    descriptor = os.memfd_create("key", os.MFD_CLOEXEC)
    os.write(descriptor, key)
    os.fchown(descriptor, QEMU_ID, QEMU_ID)
    os.fchmod(descriptor, 0o400)
    return descriptor


def unprivileged(command: list[str]) -> list[str]:
    """Return the command as QEMU's user, without capabilities."""
    words = ["setpriv", f"--reuid={QEMU_ID}", f"--regid={QEMU_ID}", "--clear-groups", "--no-new-privs"]
    return [*words, "--inh-caps=-all", "--bounding-set=-all", "--", *command]


class ExportedFile:
    """The layout of the qcow2 file: header, tables and counts, then the clusters with data in the order of
    the disk.
    """

    def __init__(self, disk_bytes: int, clusters: bytes) -> None:
        self._disk_bytes, self._clusters = disk_bytes, clusters
        groups = -(-disk_bytes // CLUSTER // ENTRIES)
        counted = (_ones(self._group(number)) for number in range(groups))
        self._before = [0, *accumulate(counted)]
        """The clusters with data before each group."""
        self._groups = [number for number in range(groups) if self._before[number + 1] > self._before[number]]
        self._l1_clusters = -(-groups // ENTRIES)
        fixed = 1 + self._l1_clusters + len(self._groups) + self._before[-1]
        blocks = tables = 0
        while (needed := -(-(fixed + blocks + tables) // COUNTS)) > blocks or not tables:
            blocks = needed
            tables = -(-blocks // ENTRIES)
        self._blocks, self._tables = blocks, tables
        self._first_table = 1 + self._l1_clusters
        self._first_block = self._first_table + tables
        self._first_l2 = self._first_block + blocks
        self._first_data = self._first_l2 + len(self._groups)
        self._total = self._first_data + self._before[-1]
        self.size = self._total * CLUSTER
        self._listed: tuple[int, list[int]] = (-1, [])

    @classmethod
    def of_empty_disk(cls, disk_bytes: int) -> "ExportedFile":
        return cls(disk_bytes, bytes(-(-disk_bytes // CLUSTER // 8) + GROUP_BYTES))

    def cluster(self, number: int) -> bytes | int:
        """Return a cluster of the file: its bytes, or the number of the disk's cluster that it is."""
        if number >= self._first_data:
            return self._data_at(number - self._first_data)
        if number >= self._first_l2:
            return self._l2(self._groups[number - self._first_l2])
        if number >= self._first_block:
            first = (number - self._first_block) * COUNTS
            counted = max(0, min(COUNTS, self._total - first))
            return (b"\x00\x01" * counted).ljust(CLUSTER, b"\0")
        if number >= self._first_table:
            first = (number - self._first_table) * ENTRIES
            places = range(
                self._first_block + first, min(self._first_block + first + ENTRIES, self._first_l2)
            )
            return _table(place * CLUSTER for place in places)
        if number:
            return self._l1(number - 1)
        head = HEAD.pack(
            *(MAGIC, VERSION, 0, 0, CLUSTER_BITS, self._disk_bytes, 0, len(self._before) - 1, CLUSTER),
            *(self._first_table * CLUSTER, self._tables, 0, 0),
        )
        rest = struct.pack(">QQQII", 0, 0, 0, COUNT_ORDER, HEADER_BYTES)
        return (head + rest).ljust(CLUSTER, b"\0")

    def _group(self, number: int) -> bytes:
        return self._clusters[number * GROUP_BYTES : (number + 1) * GROUP_BYTES]

    def _l1(self, number: int) -> bytes:
        first = number * ENTRIES
        place = {group: self._first_l2 + at for at, group in enumerate(self._groups)}
        groups = range(first, min(first + ENTRIES, len(self._before) - 1))
        return _table(place[group] * CLUSTER | COPIED if group in place else 0 for group in groups)

    def _l2(self, group: int) -> bytes:
        entries, place = [0] * ENTRIES, self._first_data + self._before[group]
        for each in _bits(self._group(group)):
            entries[each] = place * CLUSTER | COPIED
            place += 1
        return _table(entries)

    def _data_at(self, ordinal: int) -> int:
        group = bisect_right(self._before, ordinal) - 1
        if self._listed[0] != group:
            self._listed = group, list(_bits(self._group(group)))
        return group * ENTRIES + self._listed[1][ordinal - self._before[group]]


def _ones(bits: bytes) -> int:
    return int.from_bytes(bits, "little").bit_count()


def _bits(bits: bytes) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    for at, byte in enumerate(bits):
        for bit in range(8 if byte else 0):
            if byte >> bit & 1:
                yield at * 8 + bit


def _table(entries: Iterable[int]) -> bytes:
    found = list(entries)
    return struct.pack(f">{len(found)}Q", *found).ljust(CLUSTER, b"\0")


def write_file_bytes(offset: int, size: int, target: BinaryIO) -> None:
    """Write bytes of the file; both numbers are multiples of a cluster. Fewer at its end."""
    plan = json.loads((WORK / PLAN).read_text())
    file = ExportedFile(plan["disk_size_bytes"], (WORK / CLUSTERS).read_bytes())
    wanted = range(offset // CLUSTER, min(offset + size, file.size) // CLUSTER)
    with connected(WORK / SOCKET) as disk:
        for found in runs(file, wanted):
            if isinstance(found, bytes):
                target.write(found)
            else:
                target.write(read_disk(disk, found, plan["disk_size_bytes"]))


def runs(file: ExportedFile, wanted: range) -> Iterator[bytes | range]:
    """Yield these clusters of the file: their bytes, or the clusters of the disk that follow each other."""
    run = range(0)
    for number in wanted:
        found = file.cluster(number)
        if run and found == run.stop:
            run = range(run.start, run.stop + 1)
            continue
        if run:
            yield run
        run = range(found, found + 1) if isinstance(found, int) else range(0)
        if isinstance(found, bytes):
            yield found
    if run:
        yield run


def connected(path: Path) -> socket.socket:
    """Return a connection to the server of the disk (NBD, fixed newstyle). Raises OSError."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
        received(connection, 18)
        connection.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, 0))  # the export without a name
        received(connection, 10)
    except OSError:
        connection.close()
        raise
    return connection


def read_disk(connection: socket.socket, clusters: range, disk_bytes: int) -> bytes:
    """Return clusters of the disk; the last one of it is filled up with zeros. Raises OSError."""
    start, wanted = clusters.start * CLUSTER, len(clusters) * CLUSTER
    there = min(wanted, disk_bytes - start)
    connection.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 0, 0, start, there))
    _, error, _ = struct.unpack(">IIQ", received(connection, 16))
    if error:
        raise OSError(error, "the disk cannot be read")
    return received(connection, there).ljust(wanted, b"\0")


def received(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        block = connection.recv(size - len(found))
        if not block:
            raise OSError("qemu-nbd has closed the connection")
        found += block
    return bytes(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
