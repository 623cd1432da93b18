"""Paths of one engine, the names that it uses outside its folder, and the records that it keeps there.

All names are derived from the state folder, so that a process that knows only the folder can continue an
interrupted set-up or removal. Two state folders on one machine never share a name.

Records are small JSON files that survive the server, written whole or not at all. `Objects` keeps manifests
as they were last applied, one file each. They say what a pod is (labels, probes, policy) after a restart of
the server; whether it runs is always read from Podman. Secrets and ConfigMaps are not kept here. `logged`
writes one line for each change on this machine: what it was and how long it took.
"""

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from neocloud.core import osfiles
from neocloud.engines.base import EngineError, Reference
from neocloud.engines.manifest import Manifest, ManifestError, Pod, read_manifest

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
    def filesystems(self) -> Path:
        """Mount points of volumes whose size is enforced.

        Mounts in the folder `run` are shared: what is unmounted here is unmounted for Podman's monitors too.
        """
        return self.run / "filesystems"

    @property
    def disks(self) -> Path:
        """Mount points of the roots of containers whose disk has a size; shared as `filesystems`."""
        return self.run / "disks"

    @property
    def socket(self) -> Path:
        return self.run / "podman.sock"

    @property
    def events_log(self) -> Path:
        """The file that Podman and the clean-ups of containers append events to, each a line of JSON."""
        return self.run / "libpod" / "events" / "events.log"

    @property
    def podman_view(self) -> Path:
        """Return the path at which the folder `podman` is mounted for Podman.

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
    def pulled(self) -> Path:
        """Images of registries, each in a file system of its own."""
        return self.engine / "images"

    @property
    def pulled_mounts(self) -> Path:
        """Mount points of pulled images; shared as `filesystems`."""
        return self.run / "images"

    @property
    def resolv_conf(self) -> Path:
        return self.engine / "resolv.conf"

    @property
    def no_namespaces(self) -> Path:
        """Filter of system calls of containers that make no namespaces; not there where Podman has none."""
        return self.engine / "no-namespaces.json"

    @property
    def container_mark(self) -> Path:
        """An empty file, which containers have at /run/.containerenv."""
        return self.engine / "containerenv"

    @property
    def namespaces(self) -> Path:
        return self.engine / "namespaces"

    def namespace(self, namespace: str) -> Path:
        return self.namespaces / namespace

    def pod(self, pod: Reference) -> Path:
        """Folder of what belongs to one pod: scratch volumes, disks of containers."""
        return self.namespace(pod.namespace) / "pods" / pod.name

    def host_name_file(self, pod: Reference) -> Path:
        return self.pod(pod) / "hostname"

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


Kind = TypeVar("Kind", bound=Manifest)


class Objects:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def put(self, manifest: Manifest) -> None:
        path, record = self._path(manifest.reference), manifest.to_dict()
        if read_record(path) != record:
            write_record(path, record)

    def pod(self, reference: Reference) -> Pod | None:
        """The pod as it was last applied; None for one that was not."""
        return _read(Pod, self._path(reference))

    def remove(self, reference: Reference) -> None:
        self._path(reference).unlink(missing_ok=True)

    def all(self, kind: type[Kind]) -> list[Kind]:
        """Return the manifests of a kind in all namespaces."""
        folder = self._layout.namespaces
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return [manifest for name in names for manifest in self.list(name, kind)]

    def list(self, namespace: str, kind: type[Kind]) -> list[Kind]:
        folder = self._folder(namespace, kind.kind)
        found = [_read(kind, path) for path in sorted(folder.glob("*.json"))]
        return [manifest for manifest in found if manifest]

    def _folder(self, namespace: str, kind: str) -> Path:
        return self._layout.namespace(namespace) / "objects" / kind

    def _path(self, reference: Reference) -> Path:
        return self._folder(reference.namespace, reference.kind) / f"{reference.name}.json"


def _read(kind: type[Kind], path: Path) -> Kind | None:
    try:
        found = _parsed(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None  # there is none, or half of one from before a crash
    except ManifestError as error:
        raise EngineError(f"The record {path} cannot be read: {error}") from error
    if not isinstance(found, kind):
        raise EngineError(f"The record {path} cannot be read: it is not a {kind.__name__}")
    return found


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Manifest:
    """Manifests do not change, so that the same text needs to be read once."""
    return read_manifest(json.loads(text))


def read_record(path: Path) -> dict[str, Any] | None:
    """The record, None when there is none or only half of one from before a crash."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def write_record(path: Path, record: Mapping[str, object]) -> None:
    write_file(path, json.dumps(record, sort_keys=True).encode(), 0o600)


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Replace the file in one step, so that a reader sees the old or the new content."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        osfiles.write_file(path, content, mode)
    except OSError as error:
        raise EngineError(
            f"{path} could not be written: {error.strerror}; check free space and the owner of the "
            "state folder."
        ) from error


@contextlib.contextmanager
def logged(logger: logging.Logger, change: str, pod: Reference | None = None) -> Generator[None, None, None]:
    """Log the change at DEBUG once it is made; a change that fails raises and is not logged here."""
    began = time.monotonic()
    yield
    logger.debug("%s in %.3f s", change, time.monotonic() - began, extra=pod_field(pod))


def pod_field(pod: Reference | None) -> dict[str, str]:
    """Return the bound field of log lines about a pod."""
    return {"pod": f"{pod.namespace}/{pod.name}"} if pod else {}
