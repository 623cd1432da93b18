"""Lines of a container's output."""

from collections.abc import AsyncIterator

from neocloud.engines.podman.frames import FrameDecoder, LineJoiner
from neocloud.engines.podman.libpod import Libpod


async def read_lines(libpod: Libpod, container: str, *, follow: bool, tail: int) -> AsyncIterator[str]:
    """Oldest first; with `follow` until the container ends."""
    params = {"stdout": True, "stderr": True, "follow": follow, "tail": tail or "all"}
    decoder, joiner = FrameDecoder(), LineJoiner()
    async with libpod.stream(f"/containers/{container}/logs", **params) as response:
        async for data in response.aiter_raw():
            for stream, piece in decoder.feed(data):
                for line in joiner.feed(stream, piece):
                    yield line
    for line in joiner.rest():
        yield line
