# pyright: strict
"""Paths of one engine, and the names that it uses outside its folder. Pure.

All names are derived from the state folder, so that a process that knows only the folder can continue an
interrupted set-up or removal. Two state folders on one machine never share a name.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from neocloud.engines.base import EngineError

_FORBIDDEN_IN_PATHS = ':,\\"\n'


@dataclass(frozen=True)
class Layout:
    """Paths below the state folder `home`, and the id that marks our networks, rules and containers."""

    home: Path
    id: str

    @classmethod
    def of(cls, home: Path) -> "Layout":
        home = home.expanduser().resolve()
        if any(sign in str(home) for sign in _FORBIDDEN_IN_PATHS):
            raise EngineError(
                f"The state folder {home} has a character in its name that mounts do not support "
                "(colon, comma, backslash, quote); choose another folder."
            )
        return cls(home, hashlib.sha256(str(home).encode()).hexdigest()[:6])

    @property
    def podman(self) -> Path:
        return self.home / "podman"

    @property
    def run(self) -> Path:
        """Files that do not outlive a boot. Podman accepts at most 50 characters here."""
        return Path("/run") / f"neocloud-{self.id}"

    @property
    def runroot(self) -> Path:
        return self.run / "storage"

    @property
    def pod_mounts(self) -> Path:
        """Mount points that Podman mounts into pods; programs that write in a volume cannot reach them."""
        return self.run / "pods"

    @property
    def socket(self) -> Path:
        return self.run / "podman.sock"

    @property
    def podman_view(self) -> Path:
        """Where the folder `podman` is mounted for Podman.

        The root of a container with a user namespace has to reach its files, so Podman lets all users search
        every folder of their path: it must not lead through the home.
        """
        return self.run / "podman"

    @property
    def sandbox(self) -> Path:
        """Root file system of the container that holds the network of a pod with several containers."""
        return self.podman / "sandbox"

    @property
    def engine(self) -> Path:
        return self.home / "engine"

    @property
    def secrets(self) -> Path:
        return self.engine / "secrets"

    @property
    def volumes(self) -> Path:
        return self.home / "volumes"

    @property
    def images(self) -> Path:
        return self.home / "images"

    @property
    def resolv_conf(self) -> Path:
        return self.engine / "resolv.conf"

    @property
    def namespaces(self) -> Path:
        return self.engine / "namespaces"

    def namespace(self, namespace: str) -> Path:
        return self.namespaces / namespace

    def network(self, namespace: str) -> str:
        return f"neocloud-{self.id}-{namespace}"

    @property
    def interface_prefix(self) -> str:
        return f"nc{self.id}-"

    @property
    def table(self) -> str:
        return f"neocloud_{self.id}"

    @property
    def cgroup(self) -> str:
        return f"/neocloud_{self.id}"

    @property
    def label(self) -> str:
        """Label `neocloud.home` of all our containers."""
        return self.id
