"""Read the logs of containers.

A whole log is streamed by Podman. One that is followed is read from the log file itself, which Podman would
ask for news four times a second, and a page as well, in a thread, because Podman would send the whole log for
it. Podman keeps at most 64 MiB of a log (`service.py`).
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from neocloud.engines.base import MAX_LOG_PAGE_BYTES, MAX_LOG_PAGE_LINES, LogPage
from neocloud.engines.podman.execution import STDERR, STDOUT, FrameDecoder, LineJoiner
from neocloud.engines.podman.followed_file import followed_lines
from neocloud.engines.podman.libpod import Libpod

_BLOCK_BYTES = 2**20
_STREAMS = {b"stdout": STDOUT, b"stderr": STDERR}


async def read_lines(libpod: Libpod, container: str, *, follow: bool, tail: int) -> AsyncIterator[str]:
    """Yield the lines, oldest first; with `follow` until the container ends."""
    found = await libpod.get(f"/containers/{container}/json") if follow else None
    end = _end_of(found) if found is not None else None
    if found is None or end is None:
        async for line in _streamed(libpod, container, tail):
            yield line
        return
    try:
        file = Path(found["HostConfig"]["LogConfig"]["Path"])
        offset = await asyncio.to_thread(_offset_of_last, file, tail) if tail else 0
        joiner = LineJoiner()
        async with contextlib.aclosing(followed_lines(file, offset=offset, end=end)) as records:
            async for record in records:
                for line in joiner.feed(*_parsed(record)):
                    yield line
        for line in joiner.rest():
            yield line
    finally:
        os.close(end)


def _end_of(container: Mapping[str, Any]) -> int | None:
    """Return a descriptor that can be read once the container's monitor has ended, which writes its log; None
    where it has."""
    monitor = int(container["State"].get("ConmonPid") or 0)
    if not monitor:
        return None
    try:
        end = os.pidfd_open(monitor)
    except ProcessLookupError:
        return None
    with contextlib.suppress(OSError):
        if container["Id"].encode() in Path(f"/proc/{monitor}/cmdline").read_bytes():
            return end
    os.close(end)
    return None


async def _streamed(libpod: Libpod, container: str, tail: int) -> AsyncIterator[str]:
    params = {"stdout": True, "stderr": True, "follow": False, "tail": tail or "all"}
    decoder, joiner = FrameDecoder(), LineJoiner()
    async with libpod.stream(f"/containers/{container}/logs", **params) as response:
        async for data in response.aiter_raw():
            for stream, piece in decoder.feed(data):
                for line in joiner.feed(stream, piece):
                    yield line
    for line in joiner.rest():
        yield line


async def read_page(libpod: Libpod, container: str, *, first_line: int, tail: int) -> LogPage:
    """Return a page of a container's log; see Engine.log_page."""
    found = await libpod.get(f"/containers/{container}/json")
    file = Path(found["HostConfig"]["LogConfig"]["Path"])
    return await asyncio.to_thread(page_of, file, first_line=first_line, tail=tail)


def page_of(file: Path, *, first_line: int, tail: int) -> LogPage:
    """Return a page of a log file in conmon's format `k8s-file`; a missing log is empty.

    The number of a line is that of its record in the file. A record is a line, or part of one if the program
    did not end it.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return LogPage((), 0)
    try:
        return _last(descriptor, tail) if tail else _from(descriptor, first_line)
    finally:
        os.close(descriptor)


def _last(descriptor: int, tail: int) -> LogPage:
    """Decode the last bytes only; the records before them are counted."""
    total = sum(block.count(b"\n") for block in _blocks(descriptor, 0))
    size = os.fstat(descriptor).st_size
    start = max(0, size - 2 * MAX_LOG_PAGE_BYTES)
    window = os.pread(descriptor, size - start, start)
    if start:
        window = window[window.find(b"\n") + 1 :]
    joiner = LineJoiner()
    lines: deque[str] = deque(maxlen=min(tail, MAX_LOG_PAGE_LINES))
    for record in window.split(b"\n")[:-1]:
        lines.extend(joiner.feed(*_parsed(record)))
    lines.extend(joiner.rest())
    bytes_left, kept = MAX_LOG_PAGE_BYTES, 0
    for line in reversed(lines):
        bytes_left -= len(line.encode())
        if bytes_left < 0:
            break
        kept += 1
    return LogPage(tuple(lines)[len(lines) - kept :], total)


def _from(descriptor: int, first_line: int) -> LogPage:
    offset = _offset_of(descriptor, first_line)
    if offset is None:
        offset, first_line = 0, 0  # the container was started again with a new log
    joiner = LineJoiner()
    lines: list[str] = []
    bytes_left, number = MAX_LOG_PAGE_BYTES, first_line
    for record in _records(descriptor, offset):
        found = list(joiner.feed(*_parsed(record)))
        lines += found
        number += 1
        bytes_left -= sum(len(line.encode()) for line in found)
        if bytes_left <= 0 or len(lines) >= MAX_LOG_PAGE_LINES:
            break
    lines += joiner.rest()
    return LogPage(tuple(lines), number)


def _offset_of_last(file: Path, tail: int) -> int:
    """Return the offset of the last `tail` records; of fewer where they are too long for a page."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return 0
    try:
        size = os.fstat(descriptor).st_size
        start = max(0, size - 2 * MAX_LOG_PAGE_BYTES)
        window = os.pread(descriptor, size - start, start)
    finally:
        os.close(descriptor)
    at = window.rfind(b"\n") + 1  # a record that is being written follows
    for _ in range(tail):
        if not at:
            break
        at = window.rfind(b"\n", 0, at - 1) + 1
    if not at and start:
        at = window.find(b"\n") + 1
    return start + at


def _offset_of(descriptor: int, number: int) -> int | None:
    """Return the offset of the record with this number; None if there are fewer records."""
    offset = 0
    for block in _blocks(descriptor, 0):
        if not number:
            break
        if (count := block.count(b"\n")) < number:
            number -= count
            offset += len(block)
            continue
        at = 0
        for _ in range(number):
            at = block.index(b"\n", at) + 1
        return offset + at
    return None if number else offset


def _records(descriptor: int, offset: int) -> Iterator[bytes]:
    """Yield complete records; one that is being written is left for the next page."""
    rest = b""
    for block in _blocks(descriptor, offset):
        *whole, rest = (rest + block).split(b"\n")
        yield from whole


def _blocks(descriptor: int, offset: int) -> Iterator[bytes]:
    while block := os.pread(descriptor, _BLOCK_BYTES, offset):
        offset += len(block)
        yield block


def _parsed(record: bytes) -> tuple[int, bytes]:
    """Return stream and text of `TIME stdout|stderr F|P TEXT`; F marks the end of a line."""
    _, stream, kind, text = (record.split(b" ", 3) + [b""] * 4)[:4]
    return _STREAMS.get(stream, STDOUT), text if kind == b"P" else text + b"\n"
