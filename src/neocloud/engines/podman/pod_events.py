"""The events of pods: what Podman writes of them, and what their probes find."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from neocloud.engines.base import EngineEvent, EventKind, Reference


class PodEvents:
    """Joins both into one stream for each reader."""

    def __init__(self) -> None:
        self._readers: list[asyncio.Queue[EngineEvent]] = []

    def note_readiness(self, pod: Reference) -> None:
        event = EngineEvent(EventKind.POD_READINESS, pod, datetime.now(UTC))
        for each in self._readers:
            each.put_nowait(event)

    async def joined(self, others: AsyncIterator[EngineEvent]) -> AsyncIterator[EngineEvent]:
        """Yield these, and changes of readiness from now on. Exceptions of the others are raised."""
        found: asyncio.Queue[EngineEvent] = asyncio.Queue()

        async def read() -> None:
            async for event in others:
                found.put_nowait(event)

        reading = asyncio.create_task(read())
        self._readers.append(found)
        try:
            while True:
                next_one = asyncio.ensure_future(found.get())
                await asyncio.wait({next_one, reading}, return_when=asyncio.FIRST_COMPLETED)
                if not next_one.done():
                    next_one.cancel()
                    reading.result()
                    return
                yield next_one.result()
        finally:
            self._readers.remove(found)
            reading.cancel()
            await asyncio.wait({reading})
