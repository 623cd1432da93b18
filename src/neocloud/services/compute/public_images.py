"""The images that came with the cloud: built or imported on this machine, as rows that everyone may read.

The rows follow the folders of images when the server starts: a row whose folder is gone is deleted.
Disks that were created from it are copies and stay.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.messages.nebius.compute.v1 import ImageSpec, ImageStatus
from neocloud.services.compute.types import IMAGE, PUBLIC_IMAGE_ID_START, PUBLIC_IMAGES_PARENT

if TYPE_CHECKING:
    from neocloud.control_plane.settings import Settings

EMULATED_FAMILIES = ("ubuntu24.04-driverless", "ubuntu24.04-cuda13.0", "ubuntu22.04-cuda12")
EMULATED_BYTES = 4 << 30
ARCHITECTURES = {"amd64": "AMD64", "x86_64": "AMD64", "arm64": "ARM64", "aarch64": "ARM64"}


@dataclass(frozen=True)
class MachineImage:
    """An image as described by `image.json` in its folder."""

    name: str
    """The name of its folder, by which the engine finds it."""
    family: str
    title: str
    version: str
    architecture: str
    minimum_bytes: int

    @property
    def id(self) -> str:
        return PUBLIC_IMAGE_ID_START + re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


def machine_images(home: Path) -> Iterator[MachineImage]:
    for record in sorted(home.glob("images/machine/*/image.json")):
        description = json.loads(record.read_text())
        yield MachineImage(
            name=record.parent.name,
            family=description["family"],
            title=description.get("title", description["name"]),
            version=str(description.get("version", "")),
            architecture=ARCHITECTURES.get(description.get("architecture", "amd64"), "AMD64"),
            minimum_bytes=int(description["minimum_bytes"]),
        )


def emulated_images() -> Iterator[MachineImage]:
    """Yield images without a file for the families that clients of the emulator request."""
    for family in EMULATED_FAMILIES:
        title = f"No image: stands for family {family}"
        yield MachineImage(family, family, title, "1", "AMD64", EMULATED_BYTES)


async def sync_public_images(store: Store, settings: "Settings", clock: Clock) -> None:
    images = list(emulated_images() if settings.emulator else machine_images(settings.home))

    def sync(tx: Transaction) -> None:
        known = {row.id: row for row in tx.list(IMAGE, parent_id=PUBLIC_IMAGES_PARENT)[0]}
        for image in images:
            _ensure(tx, image, known.pop(image.id, None), clock.now())
        for gone in known.values():
            tx.delete(gone.id)

    await store.write(sync)


def _ensure(tx: Transaction, image: MachineImage, known: Resource | None, now: datetime) -> None:
    spec = ImageSpec(
        description=image.title,
        image_family=image.family,
        image_family_human_readable=image.title,
        version=image.version,
        cpu_architecture=image.architecture,
    ).SerializeToString()
    if known is not None and known.spec == spec:
        return
    if known is not None:
        tx.delete(known.id)
    status = ImageStatus(
        state=ImageStatus.State.Value("READY"),
        min_disk_size_bytes=image.minimum_bytes,
        storage_size_bytes=image.minimum_bytes,
    )
    tx.insert(
        Resource(
            id=image.id,
            kind=IMAGE,
            parent_id=PUBLIC_IMAGES_PARENT,
            name=image.name,
            created_at=now,
            updated_at=now,
            spec=spec,
            status=status.SerializeToString(),
            state="READY",
        )
    )
