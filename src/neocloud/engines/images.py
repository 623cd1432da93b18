"""Container images of registries that an engine pulls, and what they say about their programs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from neocloud.engines.base import EngineError

PULLED = "localhost/neocloud-pulled/"
"""How the names of pulled images begin. The images of the cloud itself have another beginning."""


class ImageTooLarge(EngineError):
    """An image does not fit in the size that its pull may take; a retry succeeds only with a larger one."""


@dataclass(frozen=True)
class ImageSettings:
    """The settings with which an image asks to be run; a container's own command, arguments and so on come
    first.
    """

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    variables: Sequence[str] = ()
    """ "NAME=value"."""
    user: str = ""
    working_dir: str = ""


@dataclass(frozen=True)
class ImagePull:
    """The data with which an engine pulls an image. The caller has checked what its manifest says."""

    image: str
    """The name that pods use: PULLED, an owner, ":" and a version."""
    source: str
    """Where the image is: "127.0.0.1:8902/e00abc/tool@sha256:...". Plain HTTP on this machine."""
    username: str
    password: str = field(repr=False)
    """A credential that pulls this repository. It is used for nothing else, and not kept."""
    settings: ImageSettings
    size_bytes: int
    """Disk space of the image: its layers as they are sent, and unpacked."""
    timeout_seconds: float


def pulled_name(owner: str, digest: str) -> str:
    """Return the local name of the image that has this digest. Owners do not share images."""
    return f"{PULLED}{owner}:{digest.rpartition(':')[2]}"
