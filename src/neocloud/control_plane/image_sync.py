"""Load new container images into the engine, at the start and while the server runs."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

from neocloud.engines.base import EngineError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


class ImageKeeper(Protocol):
    """The part of an engine that loads images."""

    async def image_exists(self, name: str) -> bool: ...

    async def load_image(self, archive: Path) -> object: ...


async def load_images(home: Path, engine: ImageKeeper) -> None:
    for name, archive in _built(home):
        if not await engine.image_exists(name):
            logger.info("loading image %s", name)
            await engine.load_image(archive)


async def follow_images(home: Path, engine: ImageKeeper, on_change: Callable[[], Awaitable[object]]) -> None:
    """Load images that are built or imported, and call `on_change` after each. Ends only when cancelled."""
    seen = _records(home)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        found = _records(home)
        if found == seen:
            continue
        try:
            await load_images(home, engine)
            await on_change()
        except (EngineError, OSError, ValueError) as error:
            logger.warning("new images could not be taken yet: %s", error)
        else:
            seen = found


def _records(home: Path) -> dict[Path, int]:
    """Return the records of complete images, with the time of each."""
    images = home / "images"
    paths = [*images.glob("*/image.json"), *images.glob("machine/*/image.json")]
    return {path: path.stat().st_mtime_ns for path in paths}


def _built(home: Path) -> Iterator[tuple[str, Path]]:
    for record in sorted(home.glob("images/*/image.json")):
        image = json.loads(record.read_text())
        if "archive" in image:
            yield image["name"], record.parent / image["archive"]
