"""Files that are followed without asking: appended to, replaced, not there yet, removed with their folder.

Podman's events and the logs of containers are read from such files."""

import asyncio
import ctypes
import errno
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from neocloud.engines.base import EngineEvent, EventKind, Reference
from neocloud.engines.podman import followed_file
from neocloud.engines.podman.container_logs import _offset_of_last  # pyright: ignore[reportPrivateUsage]
from neocloud.engines.podman.followed_file import FolderChanges, followed_lines
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.observer import watch
from neocloud.engines.podman.pod_events import PodEvents

PATIENCE_SECONDS = 20.0


async def taken(lines: AsyncIterator[bytes], count: int) -> list[bytes]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [await anext(lines) for _ in range(count)]


async def test_lines_are_told_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo\nhal")
    async with aclosing(followed_lines(file)) as lines:
        assert await taken(lines, 2) == [b"one", b"two"]
        third = asyncio.ensure_future(anext(lines))
        with file.open("ab") as writer:
            writer.write(b"f\n")
        assert await asyncio.wait_for(third, PATIENCE_SECONDS) == b"half"


async def test_a_writer_that_is_never_caught_up_with_does_not_keep_the_loop(tmp_path: Path) -> None:
    """Somebody in a container may write as fast as the disk takes it: the server keeps serving."""
    file = tmp_path / "log"
    block = (b"x" * 63 + b"\n") * 4096
    file.write_bytes(block)
    end, turns = asyncio.Event(), 0

    async def others() -> None:
        nonlocal turns
        while not end.is_set():
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    read = 0
    async with aclosing(followed_lines(file)) as lines, asyncio.timeout(PATIENCE_SECONDS):
        async for _ in lines:
            read += 1
            if read % 4096 == 1:  # in time before the reader looks for more
                with file.open("ab") as writer:
                    writer.write(block)
            if read == 20 * 4096:
                break
    end.set()
    await beside
    assert turns >= 15


async def test_nothing_is_asked_while_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No timer is set: the loop is woken by the kernel alone."""
    file = tmp_path / "log"
    file.write_bytes(b"one\n")
    loop, timers = asyncio.get_running_loop(), list[float]()
    later = loop.call_later
    async with aclosing(followed_lines(file)) as lines:
        assert await taken(lines, 1) == [b"one"]
        waiting = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0)
        monkeypatch.setattr(
            loop, "call_later", lambda *of, **more: timers.append(of[0]) or later(*of, **more)
        )
        with file.open("ab") as writer:
            writer.write(b"two\n")
        assert await waiting == b"two"
    assert timers == []


async def test_file_put_in_its_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    file, other = tmp_path / "log", tmp_path / "new"
    file.write_bytes(b"one\n")
    async with aclosing(followed_lines(file)) as lines:
        assert await taken(lines, 1) == [b"one"]
        with file.open("ab") as writer:
            writer.write(b"two\n")
        other.write_bytes(b"two\nthree\n")
        other.rename(file)
        assert await taken(lines, 3) == [b"two", b"two", b"three"], "what was appended before is not lost"


async def test_file_and_folder_may_come_later_and_again(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    async with aclosing(followed_lines(folder / "log")) as lines:
        first = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0)
        folder.mkdir()
        (folder / "log").write_bytes(b"one\n")
        assert await asyncio.wait_for(first, PATIENCE_SECONDS) == b"one"
        (folder / "log").unlink()
        folder.rmdir()
        again = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0)
        folder.mkdir()
        (folder / "log").write_bytes(b"two\n")
        assert await asyncio.wait_for(again, PATIENCE_SECONDS) == b"two"


async def test_without_room_in_the_kernel_it_looks_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(flags: int) -> int:
        ctypes.set_errno(errno.EMFILE)
        return -1

    file = tmp_path / "log"
    file.write_bytes(b"one\n")
    monkeypatch.setattr(followed_file, "_libc", SimpleNamespace(inotify_init1=refuse))
    async with aclosing(followed_lines(file)) as lines:
        assert await taken(lines, 1) == [b"one"]
        with file.open("ab") as writer:
            writer.write(b"two\n")
        assert await taken(lines, 1) == [b"two"]


async def test_following_ends_with_the_writer_after_its_last_line(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"")
    writer = subprocess.Popen(["sh", "-c", f"echo last >> {file}"])
    end = os.pidfd_open(writer.pid)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [line async for line in followed_lines(file, end=end)] == [b"last"]
    finally:
        os.close(end)
        writer.wait()


async def test_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret\n")
    (tmp_path / "log").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError):
        await taken(followed_lines(tmp_path / "log"), 1)


async def test_folder_that_goes_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    changes = FolderChanges(folder)
    folder.rmdir()
    assert await asyncio.wait_for(changes.wait(), PATIENCE_SECONDS) and changes.is_gone
    changes.close()


def line(home: str, status: str, at: datetime, **more: object) -> str:
    attributes = {
        "neocloud.home": home,
        "neocloud.namespace": "space",
        "neocloud.pod": "one",
        "neocloud.container": "main",
    }
    event = {
        "ID": "x",
        "Status": status,
        "Time": at.isoformat(),
        "Type": "container",
        "Attributes": attributes,
    }
    return json.dumps({**event, **more}, separators=(",", ":")) + "\n"


async def test_events_are_told_once_whatever_is_written_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Podman puts the second half of a long file in its place; and a crash may leave half a line."""
    layout, log = Layout.of(tmp_path / "home"), tmp_path / "events.log"
    monkeypatch.setattr(Layout, "events_log", log)
    began = datetime.now(UTC)
    old, start, died = (
        line(layout.label, "start", datetime.fromtimestamp(1, UTC)),
        line(layout.label, "start", began),
        line(layout.label, "died", began, ContainerExitCode=137),
    )
    log.write_text(old + start + line("another", "start", began) + '{"Status":"died","Ti\n' + start)
    async with aclosing(watch(layout, began.timestamp() - 1)) as events:  # pyright: ignore[reportArgumentType]
        assert (await anext(events)).kind is EventKind.POD_STARTED
        (tmp_path / "new").write_text(start + died)
        (tmp_path / "new").rename(log)
        found = await asyncio.wait_for(anext(events), PATIENCE_SECONDS)
        assert (found.kind, found.exit_code) == (EventKind.POD_DIED, 137)


@pytest.mark.parametrize(("tail", "expected"), [(1, b"c\n"), (2, b"b\nc\n"), (9, b"a\nb\nc\n")])
def test_last_records_are_found(tmp_path: Path, tail: int, expected: bytes) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"a\nb\nc\n")
    assert file.read_bytes()[_offset_of_last(file, tail) :] == expected


async def test_readiness_is_told_among_the_events_of_podman() -> None:
    events, pod = PodEvents(), Reference("Pod", "space", "one")
    of_podman: asyncio.Queue[EngineEvent] = asyncio.Queue()

    async def others() -> AsyncIterator[EngineEvent]:
        while True:
            yield await of_podman.get()

    started = EngineEvent(EventKind.POD_STARTED, pod, datetime.now(UTC))
    joined = events.joined(others())
    of_podman.put_nowait(started)
    assert await anext(joined) == started
    events.note_readiness(pod)
    found = await anext(joined)
    assert (found.kind, found.pod) == (EventKind.POD_READINESS, pod)


async def test_end_of_the_events_of_podman_is_not_hidden() -> None:
    async def broken() -> AsyncIterator[EngineEvent]:
        raise OSError("gone")
        yield

    with pytest.raises(OSError, match="gone"):
        await anext(PodEvents().joined(broken()))
