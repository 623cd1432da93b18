"""What the suite needs of the engine under test, and programs for its pods."""

from typing import Protocol

from neocloud.engines.base import Engine

SERVE = ["httpd", "-f", "-p", "8080"]
OPEN_RULES = [
    {"direction": direction, "access": "allow", "protocol": "any"} for direction in ("ingress", "egress")
]


class Bench(Protocol):
    """The engine under test and what only its own test knows."""

    engine: Engine
    image: str
    """An image with busybox."""
    root_filesystem: str
    """The name of a root file system with busybox."""

    def reopened(self) -> Engine:
        """A new engine object on the same state, as after a restart of the server."""
        ...
