"""Which container images this machine has: those that were built or imported into its state folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neocloud.services.ai.resources import KnownImages


def known_images(settings: Any) -> KnownImages:
    """Looked up on each call: images may be built while the server runs."""
    if settings.emulator:
        return lambda: None
    return lambda: _names(settings.home / "images")


def _names(folder: Path) -> Sequence[str]:
    found = []
    for record in sorted(folder.glob("*/image.json")):
        try:
            name = json.loads(record.read_text()).get("name", "")
        except (OSError, ValueError):
            continue  # being written; the next request sees it
        if name:
            found.append(name)
    return found
