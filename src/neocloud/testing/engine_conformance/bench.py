"""The engine under test for the suite, and programs for its pods."""

from typing import Protocol

from neocloud.engines.base import Engine

SERVE = ["httpd", "-f", "-p", "8080"]
OPEN_RULES = [
    {"direction": direction, "access": "allow", "protocol": "any"} for direction in ("ingress", "egress")
]


class Bench(Protocol):
    """The engine under test and the details that only its own test knows."""

    engine: Engine
    image: str
    """An image with busybox."""
    root_filesystem: str
    """The name of a root file system with busybox."""

    def reopened(self) -> Engine:
        """A new engine object on the same state, as after a restart of the server."""
        ...
