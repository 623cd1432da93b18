"""Images that are root file systems: folders from which pods run without a copy.

`localhost/neocloud/<image>:<version>` is the folder `<home>/images/<image>/<version>/rootfs`, if there is
one. It is never written to: each container has a layer above it, which goes with the container. The version
is part of the name, so a pod stays with the one that it began with while newer ones are built beside it.
"""

import re
from pathlib import Path

from neocloud.engines.podman.images import full_image_name
from neocloud.engines.podman.layout import Layout

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
"""As a container image would say of itself."""
_NAME = re.compile(r"localhost/neocloud/([a-z0-9][a-z0-9-]*):([A-Za-z0-9][A-Za-z0-9_-]*)")


def root_filesystem(layout: Layout, image: str) -> Path | None:
    """The folder behind an image's name; None for images that Podman keeps, and for those not here."""
    name = _NAME.fullmatch(full_image_name(image))
    if name is None:
        return None
    folder = layout.images / name[1] / name[2] / "rootfs"
    return folder.resolve() if folder.is_dir() else None
