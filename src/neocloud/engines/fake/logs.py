"""Logs of the containers of the fake engine."""

import asyncio
from collections.abc import AsyncIterator

from neocloud.engines.base import MAX_LOG_PAGE_BYTES, MAX_LOG_PAGE_LINES, EngineError, LogPage, Reference
from neocloud.engines.fake.faults import Faults
from neocloud.engines.fake.world import FakeContainer, FakeWorld


class FakeLogs:
    """The part of FakeEngine that reads logs, and has containers write to them."""

    world: FakeWorld
    faults: Faults
    log_readers: list[asyncio.Event]
    """Events of those who follow a log: set when something was written, or a container has ended."""

    async def logs(
        self, pod: Reference, *, container: str | None = None, follow: bool = False, tail: int = 0
    ) -> AsyncIterator[str]:
        """With `follow` until the container ends."""
        self.faults.check_available()
        chosen = self._container(pod, container)
        position = max(0, len(chosen.logs) - tail) if tail else 0
        changed = asyncio.Event()
        self.log_readers.append(changed)
        try:
            while True:
                while position < len(chosen.logs):
                    position += 1
                    yield chosen.logs[position - 1]
                if not follow or not chosen.is_running:
                    return
                changed.clear()
                await changed.wait()
        finally:
            self.log_readers.remove(changed)

    async def log_page(
        self, pod: Reference, *, container: str | None = None, first_line: int = 0, tail: int = 0
    ) -> LogPage:
        self.faults.check_available()
        logs = self._container(pod, container).logs
        if tail:
            first_line = max(0, len(logs) - min(tail, MAX_LOG_PAGE_LINES))
        elif first_line > len(logs):
            first_line = 0
        found: list[str] = []
        bytes_left = MAX_LOG_PAGE_BYTES
        for line in logs[first_line : first_line + MAX_LOG_PAGE_LINES]:
            bytes_left -= len(line.encode())
            if bytes_left < 0:
                break
            found.append(line)
        return LogPage(tuple(found), first_line + len(found))

    def write_log(self, pod: Reference, container: str, line: str) -> None:
        """Have a container print a line, in a test."""
        self._container(pod, container).logs.append(line)
        self.wake_log_readers()

    def wake_log_readers(self) -> None:
        for each in self.log_readers:
            each.set()

    def _container(self, pod: Reference, name: str | None) -> FakeContainer:
        found = self.world.pods.get(pod)
        if found is None:
            raise EngineError(f"Pod {pod.name} of namespace {pod.namespace} does not exist.")
        return found.container(name)
