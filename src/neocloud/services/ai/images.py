"""The container images of this machine: those built or imported into its state folder."""

import json
from collections.abc import Sequence
from pathlib import Path

from neocloud.control_plane.settings import Settings
from neocloud.services.ai.types import KnownImages


def known_images(settings: Settings) -> KnownImages:
    """Return a lookup that reads the folder on each call: images may be built while the server runs."""
    if settings.emulator:
        return lambda: None
    return lambda: _names(settings.home / "images")


def _names(folder: Path) -> Sequence[str]:
    found: list[str] = []
    for record in sorted(folder.glob("*/image.json")):
        try:
            name = json.loads(record.read_text()).get("name", "")
        except (OSError, ValueError):
            continue  # being written; the next request sees it
        if name:
            found.append(name)
    return found
