"""Hands an engine the container images that were built since it last looked."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

log = logging.getLogger("neocloud")


class ImageKeeper(Protocol):
    """As much of an engine as takes images."""

    async def image_exists(self, name: str) -> bool: ...

    async def load_image(self, archive: Path) -> object: ...


async def load_images(home: Path, engine: ImageKeeper) -> None:
    for name, archive in _built(home):
        if not await engine.image_exists(name):
            log.info("loading image %s", name)
            await engine.load_image(archive)


def _built(home: Path) -> Iterator[tuple[str, Path]]:
    for record in sorted(home.glob("images/*/image.json")):
        image = json.loads(record.read_text())
        if "archive" in image:
            yield image["name"], record.parent / image["archive"]
