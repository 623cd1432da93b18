"""Hands an engine the container images that were built since it last looked, also while the server runs."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

from neocloud.engines.base import EngineError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0


class ImageKeeper(Protocol):
    """As much of an engine as takes images."""

    async def image_exists(self, name: str) -> bool: ...

    async def load_image(self, archive: Path) -> object: ...


async def load_images(home: Path, engine: ImageKeeper) -> None:
    for name, archive in _built(home):
        if not await engine.image_exists(name):
            logger.info("loading image %s", name)
            await engine.load_image(archive)


async def follow_images(home: Path, engine: ImageKeeper, on_change: Callable[[], Awaitable[object]]) -> None:
    """Whenever something was built or imported, hand it over and then say so. Ends only when cancelled."""
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
    """What says that an image is complete, and since when."""
    images = home / "images"
    paths = [*images.glob("*/image.json"), *images.glob("machine/*/image.json")]
    return {path: path.stat().st_mtime_ns for path in paths}


def _built(home: Path) -> Iterator[tuple[str, Path]]:
    for record in sorted(home.glob("images/*/image.json")):
        image = json.loads(record.read_text())
        if "archive" in image:
            yield image["name"], record.parent / image["archive"]
